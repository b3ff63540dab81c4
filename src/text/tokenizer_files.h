// The tokenizer of a model directory, in whichever form it was published there.
//
// tokenizer.json where there is one, else tiktoken.model with tokenizer_config.json (tiktoken.h).
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace carpool {

// The file of `directory` that the tokenizer is read from; empty when there is none.
std::string tokenizer_file(const std::string& directory);

// Throws like Tokenizer::load; a directory without a tokenizer is kMissing.
Tokenizer load_tokenizer(const std::string& directory);

// The text of its tokenizer.json, or of one that says the same.
std::string read_tokenizer_json(const std::string& directory);

}  // namespace carpool
