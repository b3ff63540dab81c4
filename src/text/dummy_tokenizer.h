// A tokenizer for models that have no files: one token per byte, and made-up words for the rest of the vocabulary.
//
// Owns the choice of those texts; the result is an ordinary Tokenizer. Ids 0..255 are bytes, 256 is the only special
// token, and every further id decodes to a short text of its own, " t257" and so on, so that whatever a model of random
// weights chooses is valid text of a usual length. Encoding goes byte by byte.
#pragma once

#include "text/tokenizer.h"

namespace carpool {

inline constexpr int kDummyEndToken = 256;  // "<|end|>"

// `vocab` ids, at least 257 and at most 2^22; Error{kConfig} otherwise.
Tokenizer make_dummy_tokenizer(int vocab);

}  // namespace carpool
