#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clients that nobody here wrote against a server of the bundled model.
#
#   bench/serve_clients.sh FOLDER [CLIENT...]     FOLDER: a throw-away Python environment, made where it is missing
#
# Clients: openai langchain lm_eval schemathesis curl wrk slowhttptest (all by default; wrk and slowhttptest are packages of
# Debian, left out with a note where they are missing). The last line counts what passed and failed.
set -uo pipefail
root=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd -P)
folder=${1:?usage: serve_clients.sh FOLDER [CLIENT...]}
shift
clients=${*:-openai langchain lm_eval schemathesis curl wrk slowhttptest}
mkdir -p "$folder"
env=$(cd "$folder" && pwd)
[ -x "$env/bin/python" ] || python3 -m venv "$env" || exit 1
passed=0
failed=0

# need MODULE PACKAGE...: installs what a client needs, once
need() {
  local module=$1
  shift
  "$env/bin/python" -c "import $module" 2>/dev/null || "$env/bin/python" -m pip --quiet --disable-pip-version-check install "$@"
}

# check NAME COMMAND...
check() {
  local name=$1
  shift
  if "$@" >"$env/$name.log" 2>&1; then
    passed=$((passed + 1))
    echo "$name: passed"
  else
    failed=$((failed + 1))
    echo "$name: failed ($env/$name.log)"
    tail -n 15 "$env/$name.log"
  fi
}

"$root/moebius" serve --port 0 --parallel 8 --sse-ping 0 >"$env/url" 2>"$env/server.log" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null' EXIT
for _ in $(seq 1 600); do
  url=$(head -n 1 "$env/url" 2>/dev/null)
  if [ -n "$url" ] && curl -sf "$url/health" >/dev/null; then break; fi
  kill -0 "$server" 2>/dev/null || { tail "$env/server.log" >&2; exit 1; }
  sleep 0.2
done
export MOEBIUS_URL=$url

run_openai() { need openai openai && check openai "$env/bin/python" "$root/bench/serve_openai.py"; }
run_langchain() { need langchain_openai langchain-openai && check langchain "$env/bin/python" "$root/bench/serve_langchain.py"; }
run_lm_eval() {
  need lm_eval 'lm-eval[api]' || return 1
  check lm_eval "$env/bin/python" "$root/bench/serve_lm_eval.py" "$root/build/release/moebius" "$env/bin/lm_eval" "$env"
}
run_schemathesis() {
  need schemathesis schemathesis || return 1
  cd "$env" || return 1 # it leaves a cache where it runs
  check schemathesis "$env/bin/schemathesis" run "$url/openapi.json" --url "$url" --max-examples 30 --request-timeout 60 \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
  cd "$root" || return 1
}
run_curl() {
  check curl_continue curl -sf "$url/v1/completions" -H 'Content-Type: application/json' -H 'Expect: 100-continue' -d '{"prompt":"It was","max_tokens":4}'
  check curl_http10 curl -sf --http1.0 "$url/v1/completions" -H 'Content-Type: application/json' -d '{"prompt":"It was","max_tokens":4,"stream":true}'
  check curl_chunked curl -sf "$url/v1/completions" -H 'Content-Type: application/json' -H 'Transfer-Encoding: chunked' -d '{"prompt":"It was","max_tokens":4}'
}
run_wrk() {
  command -v wrk >/dev/null || { echo "wrk: left out, not installed"; return; }
  check wrk_health wrk -t1 -c64 -d5s "$url/health"
  check wrk_metrics wrk -t1 -c16 -d5s "$url/metrics"
}
run_slowhttptest() {
  command -v slowhttptest >/dev/null || { echo "slowhttptest: left out, not installed"; return; }
  for mode in H B X; do check "slowhttptest_$mode" slowhttptest -$mode -c 200 -r 100 -l 20 -i 2 -u "$url/v1/models"; done
  check health_afterwards curl -sf "$url/health"
}
for client in $clients; do "run_$client"; done
curl -sf "$url/health" >/dev/null || { echo "the server does not answer any more"; failed=$((failed + 1)); }
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
