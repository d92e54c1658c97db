#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clients that nobody here wrote against a server of the bundled model.
#
#   bench/serve_clients.sh FOLDER [CLIENT...]     FOLDER: a throw-away Python environment, made where it is missing
#
# Clients: openai agents structured langchain lm_eval schemathesis curl wrk slowhttptest vllm (all by default). What cannot be had here is left out, in
# words: wrk and slowhttptest are packages of Debian, `vllm bench serve` needs a vllm that runs on this machine (VLLM=PROGRAM; the
# environment of bench/peer_env.sh has one). The last line counts what passed, failed and was left out.
set -uo pipefail
root=$(cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd -P)
folder=${1:?usage: serve_clients.sh FOLDER [CLIENT...]}
shift
clients=${*:-openai agents structured langchain lm_eval schemathesis curl wrk slowhttptest vllm}
. "$root/scripts/setup.sh"
ensure_packages clients
mkdir -p "$folder"
env=$(cd "$folder" && pwd)
[ -x "$env/bin/python" ] || python3 -m venv "$env" || exit 1
passed=0
failed=0
left_out=0

# need MODULE PACKAGE...: installs what a client needs, once
need() {
  local module=$1
  shift
  "$env/bin/python" -c "import $module" 2>/dev/null || "$env/bin/python" -m pip --quiet --disable-pip-version-check install "$@"
}

# leave_out CLIENT WHY
leave_out() {
  left_out=$((left_out + 1))
  echo "$1: left out: $2"
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

# serve NAME OPTION...: starts a server; $url is its address, once it is ready
servers=""
trap 'for p in $servers; do kill "$p" 2>/dev/null; wait "$p" 2>/dev/null; done' EXIT
serve() {
  local name=$1 server
  shift
  : >"$env/$name.url"
  "$root/build/release/moebius" serve --port 0 --sse-ping 0 "$@" >"$env/$name.url" 2>"$env/$name.log" &
  server=$!
  servers="$servers $server"
  for _ in $(seq 1 600); do
    url=$(head -n 1 "$env/$name.url")
    if [ -n "$url" ] && curl -sf "$url/health" >/dev/null; then return; fi
    kill -0 "$server" 2>/dev/null || { tail "$env/$name.log" >&2; exit 1; }
    sleep 0.2
  done
}
[ -x "$root/build/release/moebius" ] || "$root/moebius" --version >/dev/null || exit 1 # builds it
MOEBIUS_API_KEY=sesame serve small --parallel 1 --queue 1
export MOEBIUS_SMALL_URL=$url
serve server --parallel 8 --tool-format hermes
export MOEBIUS_URL=$url

run_openai() { need openai openai && check openai "$env/bin/python" "$root/bench/serve_openai.py"; }
# Tools, reasoning, responses and messages, with scripted answers of the test program.
run_agents() {
  local tests=$root/build/release/moebius_tests
  [ -x "$tests" ] || { leave_out agents "build/release/moebius_tests is not built"; return; }
  need openai openai && need anthropic anthropic && need langchain_openai langchain-openai && need langchain langchain || return 1
  need litellm litellm && need mcp mcp && need instructor instructor
  check agents "$env/bin/python" "$root/bench/serve_agents.py" "$tests"
}
# Masked answers and calls of the bundled model itself.
run_structured() {
  need openai openai && need anthropic anthropic && need langchain_openai langchain-openai && need litellm litellm && need mcp mcp || return 1
  need instructor instructor && need jsonschema jsonschema || return 1
  check structured "$env/bin/python" "$root/bench/serve_structured.py"
}
run_langchain() { need langchain_openai langchain-openai && check langchain "$env/bin/python" "$root/bench/serve_langchain.py"; }
run_lm_eval() {
  need lm_eval 'lm-eval[api]' && need transformers transformers || return 1 # the latter reads the tokenizer
  check lm_eval "$env/bin/python" "$root/bench/serve_lm_eval.py" "$root/build/release/moebius" "$env/bin/lm_eval" "$env"
}
run_schemathesis() {
  need schemathesis schemathesis || return 1
  cd "$env" || return 1 # it leaves a cache where it runs
  check schemathesis "$env/bin/schemathesis" run "$url/openapi.json" --url "$url" --max-examples 30 --request-timeout 60 --suppress-health-check too_slow \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
  cd "$root" || return 1
}
run_curl() {
  check curl_continue curl -sf "$url/v1/completions" -H 'Content-Type: application/json' -H 'Expect: 100-continue' -d '{"prompt":"It was","max_tokens":4}'
  check curl_http10 curl -sf --http1.0 "$url/v1/completions" -H 'Content-Type: application/json' -d '{"prompt":"It was","max_tokens":4,"stream":true}'
  check curl_chunked curl -sf "$url/v1/completions" -H 'Content-Type: application/json' -H 'Transfer-Encoding: chunked' -d '{"prompt":"It was","max_tokens":4}'
}
run_wrk() {
  command -v wrk >/dev/null || { leave_out wrk "not installed"; return; }
  check wrk_health wrk -t1 -c64 -d5s "$url/health"
  check wrk_metrics wrk -t1 -c16 -d5s "$url/metrics"
}
run_slowhttptest() {
  command -v slowhttptest >/dev/null || { leave_out slowhttptest "not installed"; return; }
  for mode in H B X; do check "slowhttptest_$mode" slowhttptest -$mode -c 200 -r 100 -l 20 -i 2 -u "$url/v1/models"; done
  check health_afterwards curl -sf "$url/health"
}
# bench_serve BACKEND ENDPOINT: no request may fail
bench_serve() {
  HF_HUB_OFFLINE=1 "$vllm" bench serve --backend "$1" --base-url "$url" --endpoint "$2" --model moebius-tiny-w4a8 --tokenizer "$root/models/moebius-tiny-w4a8" \
    --dataset-name random --random-input-len 128 --random-output-len 64 --num-prompts 64 --max-concurrency 8 --ignore-eos | tee "$env/bench_serve.txt" &&
    grep -q '^Successful requests: *64' "$env/bench_serve.txt"
}
run_vllm() {
  vllm=${VLLM:-$(command -v vllm)}
  [ -n "$vllm" ] || { leave_out "vllm bench serve" "there is no vllm here; VLLM=PROGRAM names one"; return; }
  "$vllm" bench serve --help >"$env/vllm_help.log" 2>&1 || { leave_out "vllm bench serve" "$vllm does not start: $(tail -n 1 "$env/vllm_help.log")"; return; }
  check vllm_completions bench_serve openai /v1/completions
  check vllm_chat bench_serve openai-chat /v1/chat/completions
}
for client in $clients; do "run_$client"; done
curl -sf "$url/health" >/dev/null || { echo "the server does not answer any more"; failed=$((failed + 1)); }
echo "$passed passed, $failed failed, $left_out left out"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
