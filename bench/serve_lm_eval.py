#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lm-eval's local-completions against a server: token ids and text, 1 and 8 requests at once, all equal; and the sum of the
log-likelihoods of a text equals that of `moebius perplexity`.

    MOEBIUS_URL=http://127.0.0.1:8000 serve_lm_eval.py MOEBIUS LM_EVAL FOLDER
"""
import json
import math
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

URL = os.environ["MOEBIUS_URL"]
ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "moebius-tiny-w4a8"
LINES = ["It was a dark and stormy night; the rain fell in torrents.", "Once upon a time there was a small house in the wood.",
         "The quick brown fox jumps over the lazy dog.", "In the beginning there was nothing, which exploded."]


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def against_perplexity(tool, folder):
    text = folder / "line.txt"
    for line in LINES:
        text.write_text(line)
        out = subprocess.run([tool, "perplexity", str(MODEL), "-f", str(text), "--ctx", "512", "--json"], capture_output=True, text=True, check=True)
        loss = json.loads(out.stdout)["loss"]
        answer = post("/v1/completions", {"prompt": line, "max_tokens": 0, "echo": True, "logprobs": 1, "add_special_tokens": False})
        values = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
        mine = -math.fsum(values) / len(values)
        assert abs(mine - loss) <= 1e-6 * max(1, abs(loss)), (line, mine, loss)


def lm_eval(program, folder, tokenized, concurrent):
    task = folder / "task"
    task.mkdir(exist_ok=True)
    data = task / "lines.jsonl"
    data.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    (task / "lines.yaml").write_text(
        "task: moebius_lines\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: " + str(data) + "\n"
        "output_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - metric: word_perplexity\n")
    out = folder / f"lm_eval_{tokenized}_{concurrent}"
    arguments = (f"model=moebius-tiny-w4a8,base_url={URL}/v1/completions,num_concurrent={concurrent},tokenized_requests={tokenized},"
                 f"tokenizer={MODEL},max_length=512")
    subprocess.run([program, "--model", "local-completions", "--tasks", "moebius_lines", "--include_path", str(task), "--model_args",
                    arguments, "--output_path", str(out)], check=True)
    newest = max(out.rglob("results_*.json"), key=lambda p: p.stat().st_mtime)
    return json.loads(newest.read_text())["results"]["moebius_lines"]["word_perplexity,none"]


def main():
    tool, program, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    against_perplexity(tool, folder)
    values = {lm_eval(program, folder, tokenized, n) for tokenized in (True, False) for n in (1, 8)}
    assert len(values) == 1, values
    print("lm-eval passed:", values)


if __name__ == "__main__":
    main()
