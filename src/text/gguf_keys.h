// The keys of a tokenizer in GGUF metadata; shared by tokenizer_gguf.cc (reading) and tokenizer_gguf_write.cc.
#pragma once

#include <string_view>

namespace carpool::gguf_keys {

inline constexpr std::string_view kModel = "tokenizer.ggml.model", kPre = "tokenizer.ggml.pre",
                                  kTokens = "tokenizer.ggml.tokens", kTypes = "tokenizer.ggml.token_type",
                                  kMerges = "tokenizer.ggml.merges", kScores = "tokenizer.ggml.scores",
                                  kBos = "tokenizer.ggml.bos_token_id", kEos = "tokenizer.ggml.eos_token_id",
                                  kAddBos = "tokenizer.ggml.add_bos_token", kAddEos = "tokenizer.ggml.add_eos_token",
                                  kAddSpace = "tokenizer.ggml.add_space_prefix", kTemplate = "tokenizer.chat_template",
                                  kJson = "tokenizer.huggingface.json";

enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

}  // namespace carpool::gguf_keys
