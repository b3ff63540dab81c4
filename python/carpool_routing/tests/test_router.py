"""Router's own behaviour: arrays without copies, clear refusals, counters, threads."""
import threading

import numpy as np
import pytest
from carpool_routing import DECODE, ISOLATED, PAD, PREFILL, REASONS, Model, Router, RoutingError, library_version, policies

MODEL = Model(16, 4)


def logits(rows=6, seed=0, experts=16):
    return np.random.default_rng(seed).standard_normal((rows, experts)).astype(np.float32)


class OnlyDlpack:
    """An array that offers DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_outputs_are_written_where_the_caller_says(torch):
    x, router = logits(), Router("oea:k0=2", MODEL)
    want = router.route(x)
    for kind in (lambda a: a, torch.from_numpy, lambda a: OnlyDlpack(torch.from_numpy(a))):
        ids, weights = np.full((6, 6), -5, np.int32), np.full((6, 6), -5, np.float32)  # two columns to spare
        routed = router.route(kind(x), out=(kind(ids[:, :5]) if kind is not torch.from_numpy else kind(ids)[:, :5],
                                            kind(weights)[:, :5] if kind is torch.from_numpy else kind(weights[:, :5])))
        assert np.array_equal(ids[:, :4], want.ids) and np.array_equal(weights[:, :4], want.weights)
        assert (ids[:, 4] == -1).all() and (weights[:, 4] == 0).all()
        assert (ids[:, 5] == -5).all() and (weights[:, 5] == -5).all()
        assert routed.reasons.tolist() == [0] * 6


def test_inputs_may_be_views(torch):
    x, router = logits(12), Router("oea:k0=2", MODEL)
    want = router.route(np.ascontiguousarray(x[::2]))
    assert np.array_equal(router.route(x[::2]).ids, want.ids)
    wide = np.concatenate([x, x], axis=1)
    assert np.array_equal(router.route(wide[::2, :16]).ids, want.ids)
    got = router.route(torch.from_numpy(wide)[::2, 16:])
    assert isinstance(got.ids, torch.Tensor) and np.array_equal(got.ids.numpy(), want.ids)
    x.flags.writeable = False
    assert np.array_equal(router.route(x[::2]).ids, want.ids)


@pytest.mark.parametrize("change, kind, text", [
    (dict(logits=[[1.0] * 16]), TypeError, "logits is a list"),
    (dict(logits=logits().astype(np.float64)), TypeError, "logits is float64, it must be float32 or bfloat16 or float16"),
    (dict(logits=logits().astype(">f4")), TypeError, "logits is float32 with its bytes in the other order"),
    (dict(logits=np.frombuffer(bytes(6 * 64 + 1), np.uint8)[1:].view(np.float32).reshape(6, 16)), RoutingError,
     "logits does not lie at a multiple of 4 bytes"),
    (dict(logits=logits()[0]), ValueError, "logits has the shape [16], it must be [any, 16]"),
    (dict(logits=logits(experts=15)), ValueError, "logits has the shape [6, 15]"),
    (dict(logits=np.asfortranarray(logits())), ValueError, "side by side"),
    (dict(bias=np.zeros(15, np.float32)), ValueError, "bias has the shape [15]"),
    (dict(bias=np.full(16, np.nan, np.float32)), RoutingError, "the bias of expert 0 is not finite"),
    (dict(row_flags=np.zeros(6, np.int32)), TypeError, "row_flags is int32, it must be uint8"),
    (dict(row_flags=np.full(6, 9, np.uint8)), RoutingError, "row 0 has the unknown flags 9"),
    (dict(row_groups=np.zeros(5, np.int32)), ValueError, "row_groups has the shape [5]"),
    (dict(out=(np.zeros((6, 3), np.int32), np.zeros((6, 3), np.float32))), RoutingError, "3 columns are too few"),
    (dict(out=(np.zeros((6, 4), np.int64), np.zeros((6, 4), np.float32))), TypeError, "ids is int64"),
    (dict(out=(np.zeros((6, 4), np.int32), np.zeros((6, 5), np.float32))), ValueError, "weights has the shape [6, 5]"),
    (dict(in_place=True), ValueError, "in_place needs out"),
])
def test_what_cannot_be_routed_is_refused_in_one_sentence(change, kind, text):
    arguments = {"logits": logits(), **change}
    with pytest.raises(kind) as refusal:
        Router("oea:k0=2", MODEL).route(arguments.pop("logits"), **arguments)
    assert text in str(refusal.value)


def test_a_read_only_output_is_refused():
    ids, weights = np.zeros((6, 4), np.int32), np.zeros((6, 4), np.float32)
    ids.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        Router("topk", MODEL).route(logits(), out=(ids, weights))


def test_a_tensor_of_another_device_is_refused(torch):
    with pytest.raises(TypeError, match="TensorRouter on any device"):
        Router("topk", MODEL).route(torch.empty((3, 16), device="meta"))


@pytest.mark.parametrize("policy, model, text", [
    ("best", MODEL, 'unknown policy "best"; known policies: topk'), ("oea:k0=5", MODEL, "k0 5 is more than"),
    ("oea:k0=1,x=2", MODEL, 'unknown argument "x"'), ("topk", Model(16, 17), "17 experts per token of 16"),
    ("topk", Model(16, 4, n_group=3), "n_group 3 does not divide 16"),
])
def test_a_router_that_cannot_work_is_not_made(policy, model, text):
    with pytest.raises(RoutingError) as refusal:
        Router(policy, model)
    assert text in str(refusal.value)


def test_unknown_names_in_a_model_are_refused():
    for change in (dict(scoring="tanh"), dict(group_score="sum"), dict(filler="zero")):
        with pytest.raises(ValueError, match="is none of"):
            Model(16, 4, **change)


def test_counters_say_what_ran():
    router = Router("oea:k0=2", MODEL)
    flags = np.array([DECODE] * 4 + [PREFILL, PAD, ISOLATED], np.uint8)
    routed = router.route(logits(7), row_flags=flags)
    plain = Router("topk", MODEL).route(logits(7), row_flags=flags)
    c = router.counters()
    assert c["calls"] == 1 and sum(c["plain_rows"].values()) == 6
    assert c["plain_rows"]["applied"] == 4 and c["plain_rows"]["phase"] == 1 and c["plain_rows"]["isolated"] == 1
    assert c["distinct_experts"] == len(set(routed.ids.ravel()) - {-1}) < c["distinct_plain"]
    assert c["distinct_plain"] == len(set(plain.ids.ravel()) - {-1})
    assert c["rerouted_rows"] == sum(set(a) != set(b) for a, b in zip(routed.ids, plain.ids))
    assert [REASONS[r] for r in routed.reasons[4:]] == ["phase", "phase", "isolated"]
    router.reset_counters()
    assert router.counters()["calls"] == 0


def test_many_threads_share_a_router():
    router, wrong = Router("oea:k0=2", MODEL), []

    def work(seed):
        x = logits(seed=seed)
        want = Router("oea:k0=2", MODEL).route(x)
        for _ in range(100):
            got = router.route(x)
            if not (np.array_equal(got.ids, want.ids) and np.array_equal(got.weights, want.weights)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and router.counters()["calls"] == 400


def test_the_package_says_what_it_is():
    import carpool_routing

    assert library_version() == carpool_routing.__version__
    assert {"topk", "oea", "prune"} <= set(policies()) and all(policies().values())
    assert Router("oea:k0=2,min_batch=2", MODEL).spec == "oea:k0=2"
    assert Router("oea:k0=2,k_max=6", Model(16, 4, n_shared=1)).columns == 7
