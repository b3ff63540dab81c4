// Prompts as requests give them: text or token ids, one or many.
//
// Owns reading of "prompt" (completions), "text" and "input_ids" (/generate), and their encoding. Text never becomes a
// control token (text/piece.h). Encoding belongs on a worker thread.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace carpool {

struct Prompt {
  bool is_text = false;
  std::string text;
  std::vector<int> ids;
};

struct Prompts {
  std::vector<Prompt> items;
  bool list = false;  // the request gave a list of prompts, if only of one
};

// A string, a list of strings, a list of ids, or a list of lists of ids; at most kMaxPrompts prompts, none empty in
// ids.
Prompts read_prompts(const json::value& value, const std::string& path, int vocab);
// The same of one kind: /generate names them apart.
Prompts read_texts(const json::value& value, const std::string& path);
Prompts read_id_lists(const json::value& value, const std::string& path, int vocab);

// Fills `ids` of a prompt of text. ApiError invalid_value for a prompt without tokens, or that cannot be encoded.
void encode(const Tokenizer& tokenizer, bool add_special, const std::string& path, Prompt& prompt);

}  // namespace carpool
