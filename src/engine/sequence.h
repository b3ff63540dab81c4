// A request on its way through the engine: what survives from step to step, and through preemption.
//
// Owns Sequence, plain data. The scheduler writes where it stands, the engine what came out of it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/text_stream.h"
#include "grammar/constraint.h"

namespace carpool {

struct Sequence {
  RequestId id = 0;
  Request request;
  std::vector<int> tokens;  // prompt, then what was generated
  TextStream text;
  std::optional<ConstraintCursor> cursor;  // behind the last token, when the request has a constraint
  RequestStats stats;

  // Where it stands; all zero and empty while it waits.
  int computed = 0;         // positions whose keys and values are stored, rows of the step under way included
  int plain = 0;            // of them, how many from the first on were computed by plain rows alone
  int prompt_end = 0;       // positions below are prompt rows: all tokens there were at (re-)admission
  bool shared = false;      // the blocks of its prompt were offered to the prefix cache
  std::vector<int> blocks;  // the block table; its first hold.blocks belong to the prefix cache
  PrefixCache::Hold hold;

  bool admitted = false;  // for the first time or before
  bool counted = false;   // its use of the prefix cache was, when its first row ran
  PrefixReason prefix = PrefixReason::kOff;
  bool failed = false;  // a row of it brought logits that are not finite
  // With prompt_logprobs: of the tokens scored so far; goes out with the first event and is null from then on.
  std::shared_ptr<std::vector<TokenLogprobs>> prompt_scores;

  int prompt_size() const { return static_cast<int>(request.prompt.size()); }
  int size() const { return static_cast<int>(tokens.size()); }
  int generated() const { return size() - prompt_size(); }
  // Positions it must compute now before it can go on. The last token of a prompt that is only scored says nothing.
  int wanted() const { return request.max_tokens > 0 ? size() : size() - 1; }
  // Positions it can ever store. The last token is never fed back.
  int most_positions() const { return prompt_size() + request.max_tokens - 1; }
  // True while some of its prompt's tokens have no score yet.
  bool scoring() const {
    return request.prompt_logprobs && prompt_scores && static_cast<int>(prompt_scores->size()) < prompt_size();
  }
};

}  // namespace carpool
