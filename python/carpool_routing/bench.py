#!/usr/bin/env python
"""What one call of Router and TensorRouter costs: 16 rows, 256 experts, a bias, one core of the CPU.

    python/carpool_routing/bench.py [--rows 16] [--experts 256] [--top-k 8] [--policy oea:k0=5]

Prints, for each path, the median, the least and the most of nine in ten of 50 rounds of 200 calls, in microseconds of
this thread's processor time: what others do on the machine is not counted, what they do to its caches is. The C library
is called through ctypes with buffers that stay, as a C program would; the others as Python users call them.
"""
import argparse
import os
import statistics
import time

import numpy as np
from carpool_routing import Model, Router, _library

ROUNDS, CALLS = 50, 200


def measure(name, call, calls=CALLS):
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.thread_time_ns()
        for _ in range(calls):
            call()
        times.append((time.thread_time_ns() - start) / calls / 1000)
    most = statistics.quantiles(times, n=10)[-1]
    print(f"{name:34} median {statistics.median(times):7.1f} us   least {min(times):7.1f} us   9 in 10 below {most:7.1f} us")


def c_call(router, logits, bias):
    T, C = len(logits), router.columns
    ids, weights = np.empty((T, C), np.int32), np.empty((T, C), np.float32)
    batch = _library.BATCH.pack(_library.BATCH.size, T, 0, logits.ctypes.data, 0, bias.ctypes.data, 0, 0, ids.ctypes.data,
                                weights.ctypes.data, 0, 0, C, 0, 0, 0)
    handle, route = router._handle, _library.lib.carpool_routing_route
    keep = (router, logits, bias, ids, weights)
    return lambda: (route(handle, batch, None), keep)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--policy", default="oea:k0=5")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    model = Model(options.experts, options.top_k, "sigmoid", routed_scaling_factor=2.5)
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((options.rows, options.experts)).astype(np.float32)
    bias = (7 + rng.random(options.experts) / 4).astype(np.float32)
    router = Router(options.policy, model)
    out = router.route(logits, bias=bias)[:2]
    print(f"{options.policy}, {options.rows} rows, {options.top_k} of {options.experts} experts, sigmoid and bias")
    measure("C library", c_call(router, logits, bias))
    measure("Router, numpy, own buffers", lambda: router.route(logits, bias=bias, out=out))
    try:
        import torch
    except ImportError:
        return
    from carpool_routing.tensor import TensorRouter

    torch.set_num_threads(1)
    x, b, tensors = torch.from_numpy(logits), torch.from_numpy(bias), TensorRouter(options.policy, model)
    measure("Router, torch", lambda: router.route(x, bias=b))
    measure("TensorRouter, CPU, not compiled", lambda: tensors.route(x, bias=b), calls=5)


if __name__ == "__main__":
    main()
