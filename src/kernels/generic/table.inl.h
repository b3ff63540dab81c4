// The members of a Kernels table after its name, from the functions of the generic files. A fragment of an initialiser,
// which clang-format does not know how to lay out.
// clang-format off
    .product_float = {
#define CARPOOL_FORMAT(id, ...) product_float<Float##id>,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
    },
    .product_int8 = {
#define CARPOOL_FORMAT(id, ...) int8_of<Int8##id>,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
    },
    .quantize = quantize,
    .read = read_bytes,
    .dot = dot,
    .axpy = axpy,
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .softmax = softmax,
    .attention = {attention::rotate, attention::rotate_pairs, attention::span, attention::merge, attention::finish,
                  attention::index},
