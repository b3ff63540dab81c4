// The stages of a tokenizer.json that may be lists: {"type": "Sequence", <list_key>: [...]}, nested at will.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "base/json.h"

namespace carpool {

// Visits the members of a possibly nested sequence, first to last; an object of another type is its own only member.
template <class Visit>
void for_each_member(const JsonObject& object, std::string_view list_key, const Visit& visit, int depth = 0) {
  constexpr int kMaxDepth = 8;
  if (object.string("type") != "Sequence") return visit(object);
  if (depth == kMaxDepth) object.fail("type", fmt::format("Sequence nested deeper than {} levels", kMaxDepth));
  const json::array& list = object.array(list_key);
  for (size_t i = 0; i < list.size(); ++i) {
    for_each_member(JsonObject(list[i], fmt::format("{}: \"{}\"[{}]", object.where(), list_key, i)), list_key, visit,
                    depth + 1);
  }
}

[[noreturn]] inline void refuse_type(const JsonObject& object, std::string_view what) {
  object.fail("type", fmt::format("{} \"{}\" is not supported", what, escape(object.string("type"))));
}

}  // namespace carpool
