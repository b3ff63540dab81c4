#!/usr/bin/env python3
"""lm-eval's `local-completions` against a running server: its requests as it sends them, its reading of the answers.

    python python/clients/lm_eval_shape.py --url http://127.0.0.1:8080 [--golden tests/golden/books-qwen3.json]

Needs the standard library alone. The scores of /v1/completions with echo are compared, bit for bit, with two other ways
to the same numbers: one request per token that ends where the token begins and has it forced upon it by logit_bias, and
the tokens as they were generated. --golden adds a way without this server: logits that transformers computed. Exits
1 at the first difference. Does not import lm_eval.
"""
import base64
import concurrent.futures
import json
import math
import operator
import struct
import sys

import checks

CONTEXTS = ["It was a cold morning", "The old lighthouse keeper had not spoken for three days when", '"Where,"']
CONTINUATIONS = [" and the snow lay deep.", " a small boat came round the point.", " said she, \"is the dog?\""]
SEED = 1234


def loglikelihood_payload(model, prompts, **changes):
    """What LocalCompletionsAPI._create_payload makes of a batch, key by key."""
    payload = {"model": model, "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": SEED,
               "echo": True}
    return {**payload, **changes}


def parse_logprobs(answer, context_lengths):
    """(sum of log-probabilities, whether greedy decoding would say so) per prompt, as lm-eval computes them."""
    results = []
    for choice, start in zip(sorted(answer["choices"], key=operator.itemgetter("index")), context_lengths):
        chosen = choice["logprobs"]["token_logprobs"][start:-1]
        top = choice["logprobs"]["top_logprobs"][start:-1]
        results.append((sum(chosen), all(score == max(best.values()) for score, best in zip(chosen, top))))
    return results


class RemoteTokenizer:
    """What lm-eval's class of this name asks for and believes."""

    def __init__(self, server):
        self.server = server
        self.info = server.get("/tokenizer_info")

    def encode(self, text):
        return self.server.tokenize(text)

    def decode(self, ids):
        return self.server.post("/detokenize", {"tokens": ids})["prompt"]


def check_tokenizer(check, server):
    tokenizer = RemoteTokenizer(server)
    for key in ("eos_token", "bos_token", "pad_token", "chat_template"):
        check.that(key in tokenizer.info, f"/tokenizer_info says {key}")
    if tokenizer.info["eos_token"] is not None:
        ids = tokenizer.encode(tokenizer.info["eos_token"])
        check.equal(len(ids), 1, "the end token, encoded as text, is one token: lm-eval takes the first as its id")
    for text in CONTEXTS:
        check.equal(tokenizer.decode(tokenizer.encode(text)), text, f"detokenize(tokenize({text!r})) is the text")
    whole = tokenizer.encode(CONTEXTS[0] + CONTINUATIONS[0])
    check.that(all(isinstance(i, int) for i in whole), "tokens are integers")
    return tokenizer


def check_shape(check, prompts, answer, max_tokens):
    check.equal([c["index"] for c in answer["choices"]], list(range(len(prompts))), "choices come in order of index")
    for choice, prompt in zip(answer["choices"], prompts):
        scores = choice["logprobs"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            check.equal(len(scores[key]), len(prompt) + max_tokens, f"choice {choice['index']}: {key} of every token")
        check.equal((scores["token_logprobs"][0], scores["top_logprobs"][0]), (None, None), "  the first has no score")
        rest = scores["token_logprobs"][1:]
        check.that(all(isinstance(s, float) and s <= 0 for s in rest), "  all others are at most 0", str(rest))
        best = [max(t.values()) >= s for t, s in zip(scores["top_logprobs"][1:], rest)]
        check.that(all(best), "  none is better than the best of its position")
    usage = answer["usage"]
    check.equal((usage["prompt_tokens"], usage["completion_tokens"]),
                (sum(map(len, prompts)), max_tokens * len(prompts)), "usage counts prompts and generated tokens")


def check_loglikelihood(check, server, tokenizer):
    """The exact request, alone, as a batch, and many at once. Returns prompts with their scores."""
    contexts = [tokenizer.encode(text) for text in CONTEXTS]
    prompts = [c + tokenizer.encode(text) for c, text in zip(contexts, CONTINUATIONS)]
    lengths = [len(c) for c in contexts]
    batch = server.post("/v1/completions", loglikelihood_payload(server.model, prompts))
    check_shape(check, prompts, batch, 1)
    results = parse_logprobs(batch, lengths)
    for i, prompt in enumerate(prompts):
        alone = server.post("/v1/completions", loglikelihood_payload(server.model, [prompt]))
        check.equal(parse_logprobs(alone, lengths[i:]), [results[i]], f"prompt {i} alone has the score of the batch")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        payloads = [loglikelihood_payload(server.model, [prompts[i % len(prompts)]]) for i in range(24)]
        answers = list(pool.map(lambda p: server.post("/v1/completions", p), payloads))
    wanted = [[results[i % len(prompts)]] for i in range(24)]
    got = [parse_logprobs(a, lengths[i % len(prompts):]) for i, a in enumerate(answers)]
    check.equal(got, wanted, "24 requests, 8 at once, have the same scores")
    texts = server.post("/v1/completions",
                        loglikelihood_payload(server.model, [a + b for a, b in zip(CONTEXTS, CONTINUATIONS)]))
    check.equal([c["text"].startswith(a + b) for c, a, b in zip(texts["choices"], CONTEXTS, CONTINUATIONS)],
                [True] * len(prompts), "prompts of text are echoed as text")
    bare = server.post("/v1/completions", loglikelihood_payload(server.model, prompts, max_tokens=0))
    check_shape(check, prompts, bare, 0)
    check.equal([c["logprobs"]["token_logprobs"] for c in bare["choices"]],
                [c["logprobs"]["token_logprobs"][:-1] for c in batch["choices"]],
                "max_tokens 0 gives the same scores without a generated token")
    return prompts, lengths, [c["logprobs"]["token_logprobs"][:-1] for c in batch["choices"]], results


def score_of_forced(server, prefix, token):
    """The score of `token` after `prefix` when it is generated: greedily, after a bias has made it the best."""
    answer = server.post("/v1/completions", {
        "model": server.model, "prompt": [prefix], "temperature": 0, "max_tokens": 1, "logprobs": 1,
        "logit_bias": {str(token): 100}, "return_token_ids": True, "ignore_eos": True})
    choice = answer["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def check_steps(check, server, prompts, lengths, scores, results):
    for prompt, length, echoed, (total, _) in zip(prompts, lengths, scores, results):
        forced = [score_of_forced(server, prompt[:i], prompt[i]) for i in range(length, len(prompt))]
        check.equal([ids for ids, _ in forced], [[token] for token in prompt[length:]], "the tokens can be forced")
        steps = [score for _, (score,) in forced]
        check.equal(steps, echoed[length:], f"  {len(steps)} scores by echo are those of single steps, bit for bit")
        check.equal(sum(steps), total, "  and so is their sum")


def check_greedy(check, server, prompts, lengths):
    """What the model generates scores as greedy, with the scores it had when it was generated."""
    generated = server.post("/v1/completions", {
        "model": server.model, "prompt": [p[:n] for p, n in zip(prompts, lengths)], "temperature": 0, "max_tokens": 12,
        "logprobs": 1, "seed": SEED, "return_token_ids": True, "ignore_eos": True, "routing": "isolated"})
    for i, (choice, prompt, length) in enumerate(zip(generated["choices"], prompts, lengths)):
        whole = prompt[:length] + choice["token_ids"]
        answer = server.post("/v1/completions", loglikelihood_payload(server.model, [whole]))
        check.equal(answer["choices"][0]["logprobs"]["token_logprobs"][length:-1], choice["logprobs"]["token_logprobs"],
                    f"text {i}: 12 scores by echo are those of decoding, bit for bit")
        check.equal(parse_logprobs(answer, [length])[0][1], True, "  and greedy decoding would say so")
        other = whole[:-1] + [1 if whole[-1] == 0 else 0]
        answer = server.post("/v1/completions", loglikelihood_payload(server.model, [other]))
        check.equal(parse_logprobs(answer, [length])[0][1], False, "  with another last token it would not")


def check_generation(check, server, golden):
    """What generate_until sends: one prompt, stop strings, and nothing of log-probabilities."""
    context = server.tokenize(CONTEXTS[0])
    payload = {"prompt": [context], "model": server.model, "max_tokens": 40, "temperature": 0, "stop": [], "seed": SEED,
               "routing": "isolated"}  # ours: the same text whoever shares the batch
    free = server.post("/v1/completions", payload)["choices"][0]["text"]
    stop = free[len(free) // 2:][:3]
    until = server.post("/v1/completions", {**payload, "stop": [stop, "\n\n\n\n"]})["choices"][0]
    check.equal((until["text"], until["finish_reason"]), (free[:free.index(stop)], "stop"),
                "a text ends before its first stop string")
    two = server.post("/v1/completions", {**payload, "prompt": [context, context[:3]]})["choices"]
    check.equal({c["index"] for c in two}, {0, 1}, "two prompts have two texts")
    check.equal(two[0]["text"], free, "  the first is that of the prompt alone")
    if golden:
        prompt = golden["prompts"][0]
        text = server.post("/v1/completions", {**payload, "prompt": prompt["text"], "max_tokens": len(prompt["greedy"]),
                                               "ignore_eos": True, "skip_special_tokens": False, "routing": "isolated",
                                               "return_token_ids": True})["choices"][0]
        check.equal(text["token_ids"], prompt["greedy"], "greedy tokens are those of transformers")


def check_golden(check, server, golden):
    """Scores of a token after each golden prompt against the logits that transformers computed there.

    The tolerance is for float32 sums of width a few hundred in another order, in both programs: golden files say by how
    much one of them is off its own float64 result, and the other may be off as much; times 8 for the softmax and for
    what else differs (bf16 is exact in both).
    """
    tolerance = 16 * golden["numerics"]["float64_max_abs_difference"]
    worst = 0.0
    for prompt in golden["prompts"]:
        raw = base64.b64decode(prompt["last_logits"])
        logits = struct.unpack(f"<{len(raw) // 4}f", raw)
        peak = max(logits)
        norm = peak + math.log(sum(math.exp(v - peak) for v in logits))
        candidates = [prompt["greedy"][0], 17, 300, 1000, len(logits) - 1]
        answer = server.post("/v1/completions",
                             loglikelihood_payload(server.model, [prompt["tokens"] + [c] for c in candidates]))
        for choice, candidate in zip(answer["choices"], candidates):
            score = choice["logprobs"]["token_logprobs"][len(prompt["tokens"])]
            worst = max(worst, abs(score - (logits[candidate] - norm)))
    check.that(worst <= tolerance, f"{5 * len(golden['prompts'])} scores are those of transformers: within {worst:.1e}",
               f"allowed is {tolerance:.1e}")


def main():
    parser = checks.arguments(__doc__)
    parser.add_argument("--golden", help="golden file of the served model, made by python/golden/make_model_golden.py")
    options = parser.parse_args()
    check = checks.Checks()
    server = checks.Server(options.url, options.api_key)
    golden = None
    if options.golden:
        with open(options.golden, encoding="utf-8") as file:
            golden = json.load(file)
    tokenizer = check_tokenizer(check, server)
    prompts, lengths, scores, results = check_loglikelihood(check, server, tokenizer)
    check_steps(check, server, prompts, lengths, scores, results)
    check_greedy(check, server, prompts, lengths)
    check_generation(check, server, golden)
    if golden:
        check_golden(check, server, golden)
    check.done()


if __name__ == "__main__":
    sys.exit(main())
