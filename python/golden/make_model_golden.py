"""Makes a golden file for a model folder that has a tokenizer, such as models/books-qwen3.

  python make_model_golden.py MODEL --out FILE [--prompts FILE]

transformers computes in float32 from the stored weights. Without --prompts, eight of the prompts below
are taken: those whose greedy continuation has no near-tie come first, so that a test may compare token
ids; if fewer than eight are free of near-ties the rest is filled with the widest margins, and the file's
"numerics" and "margins" show it. --prompts is a JSON list of texts or of lists of token ids, all taken.
The schema is in README.md; next: common.py.
"""
import argparse
import json
import pathlib

import torch
import transformers

import common

PROMPTS_TAKEN = 8
MIN_LOGIT_MARGIN, MIN_ROUTER_MARGIN = 1e-3, 2e-5

CANDIDATES = [
    "It was a cold morning",
    "The lamp went out, and for a moment",
    "Tell me, said the old man,",
    "When the rain had stopped, the two boys took the boat from behind the mill and",
    '"I have never in my life," said Miss Harlow, "seen a dog sit so still at table."',
    "There were four doors at the end of the passage, and three of them were locked. Behind the fourth somebody was "
    "playing a fiddle, slowly and not very well.",
    "My uncle kept a shop that sold rope, tea and maps of places to which nobody went. On the first Monday of March a "
    "stranger came in, laid a silver coin on the counter, and asked for all three.",
    "They walked until the road became a path, and the path became a line of flat stones in the grass. The girl "
    "counted the stones aloud. At forty she stopped, for the next one",
    "The ship lay still under the cliff.",
    "Nobody in the village could remember a winter so long, nor one in which the wolves had come so near to the church",
    "He opened the letter with great care, read it twice, and put it into the fire without a word. Then he rang the "
    "bell and asked for his hat, his coat and",
    "On the hill above the town stood a house with green shutters, where, it was said, a king had once slept",
    "The captain looked at the sky and shook his head.",
    "She had promised to be home before dark, but the market was full of lanterns and music, and",
    "In the garden behind the school there was a well, very deep and quite dry, and whoever called into it was "
    "answered by a voice that was not his own. We had all tried it, except Thomas, who said that a thing one does not "
    "ask cannot lie.",
    "Far away, beyond the river,",
]


def read_prompts(path, tokenizer):
    """[(text or None, token ids)] of a prompts file."""
    prompts = []
    for item in json.loads(path.read_text()):
        if isinstance(item, str):
            prompts.append((item, tokenizer(item).input_ids))
        elif isinstance(item, list) and item and all(isinstance(t, int) for t in item):
            prompts.append((None, item))
        else:
            raise SystemExit(f"{path}: every item is a text or a list of token ids")
    return prompts


def choose(results, count):
    """`count` of [(entry, facts)], in their order: free of near-ties first, then by the width of the margin."""
    def rank(i):
        facts = results[i][1]
        router = facts["min_router_margin"]
        clear = (facts["agreed"] and facts["min_logit_margin"] > MIN_LOGIT_MARGIN
                 and (router is None or router > MIN_ROUTER_MARGIN))
        return (not clear, 0 if clear else -facts["min_logit_margin"], i)
    return [results[i] for i in sorted(sorted(range(len(results)), key=rank)[:count])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--prompts", type=pathlib.Path)
    args = parser.parse_args()
    common.quiet()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(args.model))
    model, exact = common.load_reference(args.model), common.load_reference(args.model, torch.float64)
    end_ids = model.config.eos_token_id
    end_ids = set(end_ids if isinstance(end_ids, list) else [end_ids])
    if args.prompts:
        prompts = read_prompts(args.prompts, tokenizer)
    else:
        prompts = [(text, tokenizer(text).input_ids) for text in CANDIDATES]

    results = []
    for text, tokens in prompts:
        entry, facts = common.describe_prompt(model, exact, tokens)
        greedy = entry["greedy"]
        entry["greedy_text"] = tokenizer.decode(greedy, skip_special_tokens=False)
        entry["greedy_until_eos"] = next((i for i, t in enumerate(greedy) if t in end_ids), len(greedy))
        results.append(({"text": text, **entry} if text is not None else entry, facts))
    if not args.prompts:
        results = choose(results, PROMPTS_TAKEN)
    entries, facts = [e for e, _ in results], [f for _, f in results]
    shortest = min(range(len(entries)), key=lambda i: len(entries[i]["tokens"]))
    shown = args.model.name if args.model.is_absolute() else args.model.as_posix()
    command = f"python python/golden/make_model_golden.py {shown}" + (" --prompts FILE" if args.prompts else "")
    golden = {
        "family": model.config.model_type, "case": args.model.resolve().name,
        "what": "greedy continuations of a trained model",
        "made_by": {"command": command, **common.versions()},
        "vocab_size": model.config.vocab_size, "numerics": common.summarise(facts), "prompts": entries,
        "trace": {"prompt": shortest, "layers": common.trace(model, entries[shortest]["tokens"])},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    common.write_golden(args.out, golden)
    for entry, fact in results:
        print(len(entry["tokens"]), "tokens:", fact, repr(entry["greedy_text"][:60]))
    print(args.out, golden["numerics"])


if __name__ == "__main__":
    main()
