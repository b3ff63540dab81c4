#include "routing/bands.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {
namespace {

constexpr size_t kMostBands = 64;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorKind::kConfig, fmt::format("policy bands: {}; it is ROWS=POLICY with \";\" between, as in "
                                              "bands:4=oea:k0=5;16=oea:k0=4",
                                              what));
}

// What bands must have in common.
void check_together(const Policy& one, const Policy& other) {
  if (one.layers() != 0 && other.layers() != 0 && one.layers() != other.layers())
    fail(fmt::format("one band has values for {} layers, another for {}", one.layers(), other.layers()));
  const std::string file = one.tables_file(), file2 = other.tables_file();
  if (!file.empty() && !file2.empty() && file != file2)
    fail(fmt::format("the bands' tables are of one file, not of {} and {}", escape(file, 200), escape(file2, 200)));
}

}  // namespace

Bands::Bands(std::vector<Band> bands) : bands_(std::move(bands)) {
  CARPOOL_CHECK(!bands_.empty());
  // Plain with the reason min_batch: no group has as many rows.
  below_ = make_policy(fmt::format("oea:k0=1,min_batch={}", kMaxArgument));
  std::vector<const Policy*> all = {below_.get()};
  for (const Band& band : bands_) all.push_back(band.policy.get());
  set_ = std::make_unique<PolicySet>(all);
  properties_ = set_->properties();
  properties_.batch_free = false;  // a row more may be another band
}

void Bands::select(const RouterInput& in, Scratch& scratch, Selection& out) const {
  if (scratch.nested.empty()) scratch.nested.resize(1);
  Scratch& inner = scratch.nested[0];
  number_groups(in, scratch);
  ensure(scratch.band_tokens, in.tokens.size());
  for (size_t t = 0; t < in.tokens.size(); ++t) {
    scratch.band_tokens[t] = in.tokens[t];
    const int g = scratch.group_of_row[t];
    const int rows = g < 0 ? 0 : scratch.group_rows[static_cast<size_t>(g)];
    const auto band =
        std::upper_bound(bands_.begin(), bands_.end(), rows, [](int n, const Band& b) { return n < b.from; });
    scratch.band_tokens[t].policy = static_cast<int>(band - bands_.begin());
  }
  RouterInput seen = in;
  seen.tokens = std::span(scratch.band_tokens).first(in.tokens.size());
  set_->select(seen, inner, out);
}

std::string Bands::spec() const {
  std::string out(kBandsPrefix);
  for (const Band& band : bands_)
    out += fmt::format("{}{}={}", &band == bands_.data() ? "" : ";", band.from, band.policy->spec());
  return out;
}

bool Bands::is_plain(int top_k) const {
  return std::all_of(bands_.begin(), bands_.end(), [top_k](const Band& b) { return b.policy->is_plain(top_k); });
}

void Bands::check(int n_experts, int top_k) const {
  for (const Band& band : bands_) band.policy->check(n_experts, top_k);
}

int Bands::layers() const {
  int layers = 0;
  for (const Band& band : bands_) layers = std::max(layers, band.policy->layers());
  return layers;
}

std::string Bands::tables_file() const {
  for (const Band& band : bands_) {
    if (!band.policy->tables_file().empty()) return band.policy->tables_file();
  }
  return "";
}

void Bands::use_tables(std::shared_ptr<const RoutingTables> tables) {
  for (const Band& band : bands_) {
    if (!band.policy->tables_file().empty()) band.policy->use_tables(tables);
  }
}

std::unique_ptr<Policy> make_bands(std::string_view text) {
  std::vector<Band> bands;
  while (true) {
    const std::string_view item = text.substr(0, text.find(';'));
    const size_t equals = item.find('=');
    Band band;
    const auto [stop, error] = std::from_chars(item.data(), item.data() + std::min(equals, item.size()), band.from);
    if (equals == std::string_view::npos || error != std::errc() || stop != item.data() + equals || band.from < 1 ||
        band.from > kMaxArgument) {
      fail(fmt::format("\"{}\" does not begin with a number of rows, 1 to {}, and \"=\"", escape(item, 60),
                       kMaxArgument));
    }
    if (!bands.empty() && band.from <= bands.back().from) fail("the numbers of rows must ascend");
    if (bands.size() == kMostBands) fail(fmt::format("more than {} bands", kMostBands));
    const std::string_view spec = item.substr(equals + 1);
    if (spec.starts_with(kBandsPrefix)) fail("a band cannot hold bands");
    band.policy = make_policy(spec);
    for (const Band& other : bands) check_together(*other.policy, *band.policy);
    bands.push_back(std::move(band));
    if (item.size() == text.size()) break;
    text.remove_prefix(item.size() + 1);
  }
  return std::make_unique<Bands>(std::move(bands));
}

}  // namespace carpool
