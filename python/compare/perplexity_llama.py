"""The perplexity of a GGUF model by llama.cpp's library, to compare `carpool eval --perplexity` with.

  python perplexity_llama.py --library DIRECTORY MODEL.gguf TEXT [--context 512] [--chunks N] [--threads N]

DIRECTORY holds libllama*.so and the libraries it needs, as the package `@node-llama-cpp/linux-x64` has them under bins/
and a build of llama.cpp has them under bin/. Tokenization and logits are llama.cpp's; windows and sums follow its
program llama-perplexity: windows of `context` tokens, the begin token first where the model wants one, and the tokens
after the first half scored.
"""
import argparse
import ctypes
import glob
import os
import pathlib

import numpy


class Parameters(ctypes.Structure):
    """More bytes than any version's parameters: they are the last argument, so what is behind them is not read."""
    _fields_ = [("words", ctypes.c_uint32 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)),
                ("embd", ctypes.c_void_p), ("pos", ctypes.POINTER(ctypes.c_int32)),
                ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
                ("logits", ctypes.POINTER(ctypes.c_int8))]


def load(directory):
    """The library, with the types of what is called."""
    for name in ("libggml-base*.so*", "libggml.*so*", "libggml.so*"):
        for path in sorted(glob.glob(os.path.join(directory, name))):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    lib = ctypes.CDLL(sorted(glob.glob(os.path.join(directory, "libllama.*so*")))[0], mode=ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(sorted(glob.glob(os.path.join(directory, "libggml.*so*")))[0])
    ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
    ggml.ggml_backend_load_all_from_path(str(directory).encode())
    pointer = ctypes.c_void_p
    for name, result, arguments in (
            ("llama_model_default_params", Parameters, []), ("llama_context_default_params", Parameters, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Parameters]),
            ("llama_init_from_model", pointer, [pointer, Parameters]),
            ("llama_model_get_vocab", pointer, [pointer]), ("llama_vocab_n_tokens", ctypes.c_int32, [pointer]),
            ("llama_vocab_get_add_bos", ctypes.c_bool, [pointer]), ("llama_vocab_bos", ctypes.c_int32, [pointer]),
            ("llama_tokenize", ctypes.c_int32, [pointer, ctypes.c_char_p, ctypes.c_int32,
                                                ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool,
                                                ctypes.c_bool]),
            ("llama_batch_init", Batch, [ctypes.c_int32] * 3), ("llama_decode", ctypes.c_int32, [pointer, Batch]),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, ctypes.c_int32]),
            ("llama_get_memory", pointer, [pointer]), ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
            ("llama_set_n_threads", None, [pointer, ctypes.c_int32, ctypes.c_int32])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def tokenize(lib, vocab, text):
    count = len(text) + 8
    tokens = (ctypes.c_int32 * count)()
    found = lib.llama_tokenize(vocab, text, len(text), tokens, count, True, False)
    if found < 0:
        raise SystemExit("the text has more tokens than bytes")
    return list(tokens[:found])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("model")
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--chunks", type=int)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    lib = load(args.library)
    model = lib.llama_model_load_from_file(args.model.encode(), lib.llama_model_default_params())
    parameters = lib.llama_context_default_params()
    parameters.words[0] = parameters.words[1] = parameters.words[2] = args.context  # n_ctx, n_batch, n_ubatch
    context = lib.llama_init_from_model(model, parameters)
    lib.llama_set_n_threads(context, args.threads, args.threads)
    vocab = lib.llama_model_get_vocab(model)
    size, begin = lib.llama_vocab_n_tokens(vocab), lib.llama_vocab_get_add_bos(vocab)
    tokens = tokenize(lib, vocab, args.text.read_bytes())
    windows = len(tokens) // args.context
    print(f"{len(tokens)} tokens, {windows} windows, begin token {'yes' if begin else 'no'}", flush=True)
    batch, total, scored = lib.llama_batch_init(args.context, 0, 1), 0.0, 0
    first = args.context // 2
    for w in range(min(windows, args.chunks or windows)):
        window = tokens[w * args.context : (w + 1) * args.context]
        if begin:
            window[0] = lib.llama_vocab_bos(vocab)
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        batch.n_tokens = args.context
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, i, 1, 0
            batch.logits[i] = i >= first
        if lib.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        for i in range(first, args.context - 1):
            logits = numpy.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (size,)).astype(numpy.float64)
            top = logits.max()
            total += top + numpy.log(numpy.exp(logits - top).sum()) - logits[window[i + 1]]
            scored += 1
        print(f"[{w + 1}] {numpy.exp(total / scored):.4f}", flush=True)
    print(f"{scored} tokens, {total / scored:.5f} nats/token, perplexity {numpy.exp(total / scored):.4f}")


if __name__ == "__main__":
    main()
