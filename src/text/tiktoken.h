// Tokenizers published as tiktoken files: tiktoken.model, a line of base64 and rank for each token, beside a
// tokenizer_config.json that names the tokens with ids above those.
//
// The expression that cuts text into words stands in neither, but in the Python code published with them; it is known
// here by the class that tokenizer_config.json names. The result is put together to a tokenizer.json, so that there is
// one loader. That code also cuts runs of over 25,000 characters, with or without white space, which is not done here.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace carpool {

// `ranks` is the text of tiktoken.model, `config` that of tokenizer_config.json; `*_where` are their names in errors.
// The model has "ranks" (bpe.h). Throws Error{kMalformed} by line or key path, kConfig for an unknown class.
json::value tiktoken_json(std::string_view ranks, const std::string& ranks_where, std::string_view config,
                          const std::string& config_where);

}  // namespace carpool
