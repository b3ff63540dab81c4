// Reads tokenizer.json into Tokenizer::State and checks that its parts fit together; see tokenizer.h.
#include <fmt/format.h>

#include <algorithm>

#include "text/sequence.h"
#include "text/tokenizer_state.h"

namespace carpool {
namespace {

// Enters the added tokens into `state` after checking them against the vocabulary and each other.
void place_added_tokens(const JsonObject& root, const std::vector<AddedToken>& added, Tokenizer::State& state,
                        std::vector<bool>& taken) {
  for (size_t i = 0; i < added.size(); ++i) {
    const AddedToken& token = added[i];
    const auto id = static_cast<size_t>(token.id);
    const auto fail = [&](const std::string& what) {
      root.fail("added_tokens", fmt::format("entry {} (\"{}\"): {}", i, escape(token.content), what));
    };
    if (state.added_ids.contains(token.content)) fail("is there twice");
    const auto known = state.model.vocab().find(token.content);
    if (known != state.model.vocab().end()) {
      if (known->second != token.id) fail(fmt::format("has the id {}, but {} in the vocabulary", id, known->second));
    } else if (taken[id]) {
      fail(fmt::format("the id {} belongs to another token", id));
    }
    taken[id] = true;
    state.added_ids.emplace(token.content, token.id);
    state.bytes[id] = state.decoder.added_bytes(token.content);
    state.special[id] = token.special;
    state.control[id] = token.control;
  }
}

// Sizes the tables, fills them, and makes sure that every id below the highest is somebody's.
void build_tables(const JsonObject& root, const std::vector<AddedToken>& added, Tokenizer::State& state) {
  int highest = 0;
  for (const auto& [token, id] : state.model.vocab()) highest = std::max(highest, id);
  for (const AddedToken& token : added) highest = std::max(highest, token.id);
  const auto count = static_cast<size_t>(highest) + 1;
  state.bytes.resize(count);
  state.special.resize(count);
  state.control.resize(count);
  std::vector<bool> taken(count);
  for (const auto& [token, id] : state.model.vocab()) {
    taken[static_cast<size_t>(id)] = true;
    state.bytes[static_cast<size_t>(id)] = state.decoder.token_bytes(token);
  }
  place_added_tokens(root, added, state, taken);
  if (const auto hole = std::find(taken.begin(), taken.end(), false); hole != taken.end()) {
    root.fail("model", fmt::format("no token has the id {}, though {} is in use", hole - taken.begin(), highest));
  }
}

// {"SpecialToken": {"id": "<s>"}} or {"Sequence": {"id": "A"}} of a TemplateProcessing's "single" list.
void load_template_item(const JsonObject& post, const JsonObject& item, Tokenizer::State& state, bool& seen_text) {
  if (item.has("Sequence")) {
    if (item.object("Sequence").string("id") != "A" || seen_text) item.fail("Sequence", "must be \"A\", once");
    seen_text = true;
    return;
  }
  const std::string name = item.object("SpecialToken").string("id");
  const JsonObject names = post.object("special_tokens");
  const JsonObject entry = names.object(name);
  for (const json::value& value : entry.array("ids")) {
    const auto* id = value.if_int64();
    if (!id || *id < 0 || static_cast<size_t>(*id) >= state.bytes.size()) {
      entry.fail("ids", "holds something that is not the id of a token");
    }
    (seen_text ? state.suffix : state.prefix).push_back(static_cast<int>(*id));
  }
}

void load_post_processor(const JsonObject& root, Tokenizer::State& state) {
  if (!root.has("post_processor")) return;
  bool seen_template = false;
  for_each_member(root.object("post_processor"), "processors", [&](const JsonObject& object) {
    const std::string type = object.string("type");
    if (type == "ByteLevel") return;  // changes offsets only, which carpool does not report
    if (type != "TemplateProcessing" || seen_template) refuse_type(object, "post-processor");
    seen_template = true;
    bool seen_text = false;
    const json::array& single = object.array("single");
    for (size_t i = 0; i < single.size(); ++i) {
      const JsonObject item(single[i], fmt::format("{}: \"single\"[{}]", object.where(), i));
      load_template_item(object, item, state, seen_text);
    }
    if (!seen_text) object.fail("single", "does not contain the text (Sequence \"A\")");
  });
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& path) { return parse(read_text_file(path), path); }

Tokenizer Tokenizer::parse(std::string_view text, const std::string& where) {
  return from_json(parse_json(text, where), where);
}

Tokenizer Tokenizer::from_json(const json::value& value, const std::string& where) {
  const JsonObject root(value, where);
  auto state = std::make_shared<State>();
  state->normalizer = Normalizer::load(root);
  state->pre_tokenizer = PreTokenizer::load(root);
  const bool byte_level = state->pre_tokenizer.is_byte_level();
  state->decoder = TokenDecoder::load(root, byte_level);
  state->model = BpeModel::load(root.object("model"), byte_level);
  std::vector<AddedToken> added = load_added_tokens(root, kMaxTokens - 1);
  build_tables(root, added, *state);
  load_post_processor(root, *state);
  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : added) {
    if (token.normalized) token.content = state->normalizer.apply(token.content);
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  state->raw_tokens = AddedTokenMatcher(std::move(raw));
  state->normalized_tokens = AddedTokenMatcher(std::move(normalized));
  return Tokenizer(std::move(state));
}

}  // namespace carpool
