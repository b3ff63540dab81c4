// See argument_types.h.
#include "text/parsers/argument_types.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

namespace carpool {
namespace {

using T = ArgumentTypes;

constexpr int kMaxDepth = 16;    // of schemas within schemas
constexpr int kMaxSteps = 4096;  // schemas looked at

unsigned type_of_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, unsigned>, 7> kNames = {{{"string", T::kString},
                                                                            {"integer", T::kInteger},
                                                                            {"number", T::kInteger | T::kNumber},
                                                                            {"boolean", T::kBoolean},
                                                                            {"null", T::kNull},
                                                                            {"object", T::kObject},
                                                                            {"array", T::kArray}}};
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  return T::kAny;
}

unsigned named_types(const json::value& type) {
  if (type.is_string()) return type_of_name(type.get_string());
  unsigned types = 0;
  if (const json::array* list = type.if_array()) {
    for (const json::value& each : *list) types |= each.is_string() ? type_of_name(each.get_string()) : T::kAny;
  }
  return types ? types : T::kAny;
}

class Reader {
 public:
  explicit Reader(const json::object& root) : root_(root) {}

  // Of the member `name` of what `schema` accepts.
  unsigned of_member(const json::object& schema, std::string_view name, int depth) {
    unsigned types = T::kAny;
    if (const json::value* properties = schema.if_contains("properties"); properties && properties->is_object()) {
      if (const json::value* own = properties->get_object().if_contains(name)) types &= of(*own, depth + 1);
    }
    return types & combined(schema, depth, [&](const json::value& each) {
             return each.is_object() && !spent(depth) ? of_member(each.get_object(), name, depth + 1) : T::kAny;
           });
  }

 private:
  bool spent(int depth) { return depth > kMaxDepth || ++steps_ > kMaxSteps; }

  // What $ref, allOf, anyOf and oneOf of `schema` leave, when `look` tells what one schema allows.
  template <class F>
  unsigned combined(const json::object& schema, int depth, F look) {
    unsigned types = T::kAny;
    if (const json::value* ref = schema.if_contains("$ref"); ref && ref->is_string() && !spent(depth)) {
      if (const json::value* to = target(ref->get_string())) {
        types &= look(*to);
      } else if (ref->get_string() == "#") {
        if (!whole_) whole_ = root_;
        types &= look(*whole_);
      }
    }
    if (const json::value* all = schema.if_contains("allOf"); all && all->is_array()) {
      for (const json::value& each : all->get_array()) types &= look(each);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      const json::value* list = schema.if_contains(key);
      if (!list || !list->is_array() || list->get_array().empty()) continue;
      unsigned any = 0;
      for (const json::value& each : list->get_array()) any |= look(each);
      types &= any;
    }
    return types;
  }

  unsigned of(const json::value& schema, int depth) {
    const json::object* object = schema.if_object();
    if (!object || spent(depth)) return T::kAny;
    unsigned types = combined(*object, depth, [&](const json::value& each) { return of(each, depth + 1); });
    if (const json::value* type = object->if_contains("type")) types &= named_types(*type);
    if (const json::value* list = object->if_contains("enum"); list && list->is_array()) {
      unsigned any = 0;
      for (const json::value& each : list->get_array()) any |= type_of(each);
      types &= any;
    }
    if (const json::value* constant = object->if_contains("const")) types &= type_of(*constant);
    const json::value* nullable = object->if_contains("nullable");
    return nullable && nullable->is_bool() && nullable->get_bool() ? types | T::kNull : types;
  }

  // "#/a/b" within the root; null where it points to nothing, and for "#".
  const json::value* target(std::string_view pointer) const {
    if (!pointer.starts_with("#/")) return nullptr;
    const json::value* at = nullptr;
    for (std::string_view rest = pointer.substr(1); !rest.empty();) {
      const size_t end = std::min(rest.find('/', 1), rest.size());
      const std::string part = unescaped(rest.substr(1, end - 1));
      rest.remove_prefix(end);
      const json::object* object = at ? at->if_object() : &root_;
      if (object) {
        at = object->if_contains(part);
      } else if (const json::array* list = at->if_array()) {
        size_t index = 0;
        const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), index);
        const bool whole = error == std::errc() && stop == part.data() + part.size();
        at = whole && index < list->size() ? &(*list)[index] : nullptr;
      } else {
        at = nullptr;
      }
      if (!at) return nullptr;
    }
    return at;
  }

  static std::string unescaped(std::string_view part) {
    std::string out;
    for (size_t i = 0; i < part.size(); ++i) {
      const bool escape = part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1');
      out += escape ? (part[++i] == '0' ? '~' : '/') : part[i];
    }
    return out;
  }

  const json::object& root_;
  std::optional<json::value> whole_;  // the same, made when it is asked for
  int steps_ = 0;
};

}  // namespace

unsigned type_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::string:
      return T::kString;
    case json::kind::bool_:
      return T::kBoolean;
    case json::kind::null:
      return T::kNull;
    case json::kind::object:
      return T::kObject;
    case json::kind::array:
      return T::kArray;
    case json::kind::double_:
      return T::kNumber;
    default:
      return T::kInteger | T::kNumber;
  }
}

unsigned argument_types(const json::object& parameters, std::string_view name) {
  const unsigned types = Reader(parameters).of_member(parameters, name, 0);
  return types ? types : T::kAny;
}

}  // namespace carpool
