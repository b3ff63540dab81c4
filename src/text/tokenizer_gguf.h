// Tokenizers in GGUF metadata: read, and written from a tokenizer.json.
//
// Byte-level BPE ("gpt2"), whose pre-tokenizer a file names (gguf_pre_tokenizers.h), and SentencePiece BPE ("llama"),
// whose scores decide about merges (rank_merges.h). What the file holds is put together to the tokenizer.json that it
// came from, so that there is one loader and ids equal those of the original. A file may carry that JSON itself
// (tokenizer.huggingface.json), which wins: it is what carpool writes for a tokenizer that the other keys cannot
// describe.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace carpool {

// False for a file without a tokenizer, which can be measured but not talked to.
bool gguf_has_tokenizer(const GgufMetadata& metadata);

// Throws Error{kMalformed}: tokens that are no UTF-8 or there twice, arrays of other lengths, special ids outside of
// the vocabulary, and all that Tokenizer::parse refuses; kConfig for a model or pre-tokenizer that is not supported
// (the supported ones are listed). Unused tokens at the end are left out.
Tokenizer gguf_tokenizer(const GgufMetadata& metadata);
TokenizerConfig gguf_tokenizer_config(const GgufMetadata& metadata);

// The tokenizer.json of the metadata: the one it holds, or the one put together.
std::string gguf_tokenizer_json(const GgufMetadata& metadata);

// Adds the tokenizer of a Hugging Face directory to `out`: `tokenizer` is its tokenizer.json, `where` its name in
// errors, `config` what tokenizer_config.json says, `vocab` the rows of the model's embedding. Returns true when the
// ggml keys describe it, false when only the JSON does, which other programs may not read.
bool add_gguf_tokenizer(const std::string& tokenizer, const std::string& where, const TokenizerConfig& config,
                        int vocab, GgufWriter& out);

}  // namespace carpool
