// One block of the key-value cache: the keys and values of 16 consecutive positions of one kv head, and their bytes.
//
// Owns the element formats, the layout and the slow way in and out; fast arithmetic on it is kernels/generic/attention.
// Keys lie transposed, so that one vector holds the same element of 8 or 16 positions and a score needs no sum across
// lanes; values lie in chunks of 16 elements, so that a weighted sum walks 64 bytes at a time:
//   keys    [head_dim][16 positions]
//   values  [ceil(value_dim / 16) chunks][16 positions][16 elements], elements past value_dim are zeros
// Latent attention has no values of its own, they are the start of its keys; an indexer has keys alone.
// F32 keeps every bit; BF16 rounds to nearest even. Q8 is int8 times a scale that 32 consecutive elements of one
// position share (the last group may be shorter): bfloat16, the largest magnitude / 127 rounded up, in a table
// [groups][16 positions] before the bytes. A group with NaN or infinity gets the scale NaN, so that the fault stays
// visible. Keys and values each start at a multiple of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace carpool {

enum class KvFormat : uint8_t { kF32, kBF16, kQ8 };

inline constexpr int kKvPositions = 16;   // of a block
inline constexpr int kKvChunk = 16;       // elements of a value that lie together
inline constexpr int kKvScaleGroup = 32;  // elements that share a scale of Q8

// "f32", "bf16", "q8"; and back, nullopt for every other name.
std::string_view name(KvFormat format);
std::optional<KvFormat> kv_format_of_name(std::string_view name);

// Where things are in a block of keys of `head_dim` >= 1 elements and values of `value_dim` >= 0.
struct KvBlock {
  KvBlock() = default;
  // `values_in_keys`: values are the first value_dim <= head_dim elements of the keys and are not stored again.
  KvBlock(KvFormat format, int head_dim, int value_dim, bool values_in_keys = false);

  KvFormat format = KvFormat::kF32;
  int head_dim = 0;
  int value_dim = 0;
  bool values_in_keys = false;
  size_t value_offset = 0;  // bytes from the keys to the values, where they are stored
  size_t bytes = 0;         // keys and values

  // Writes key [head_dim] and value [value_dim] of the position `slot` in [0, 16); a value that is not stored is not
  // read.
  void store(std::byte* block, int slot, const float* key, const float* value) const;
  // Reads them back as the numbers that attention must compute with. `value` may be null.
  void load(const std::byte* block, int slot, float* key, float* value) const;
  // Key and value of a position as they are stored, from one block to a slot of another.
  void copy(const std::byte* from, int from_slot, std::byte* to, int to_slot) const;

  bool has_values() const { return value_dim > 0 && !values_in_keys; }
};

}  // namespace carpool
