// The members of a Kernels table after its name, from the functions of the generic files. A fragment of an initialiser,
// which clang-format does not know how to lay out.
// clang-format off
    .matmul = {
#define CARPOOL_FORMAT(id, name, dtype, elements, bytes) matmul<Weights##id>,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
    },
    .dot = dot,
    .axpy = axpy,
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .softmax = softmax,
