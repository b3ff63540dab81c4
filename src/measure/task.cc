#include "measure/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "measure/lines.h"
#include "measure/lockstep.h"
#include "measure/perplexity.h"

namespace carpool {
namespace {

constexpr int kChunk = 64;  // prompt rows in one step
constexpr size_t kMostQuestions = size_t{1} << 20, kMostChoices = 256;

double characters_of(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return static_cast<double>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// The context and the continuation in tokens, as lm-evaluation-harness cuts them.
TaskItem make_item(std::string context, std::string continuation, const Tokenizer& tokenizer, const ModelConfig& config,
                   const std::string& where) {
  TaskItem item;
  item.characters = std::max(1.0, characters_of(continuation));
  const size_t kept = context.find_last_not_of(" \t\n") + 1;  // 0 when there is nothing else
  continuation = context.substr(kept) + continuation;
  context.resize(kept);
  item.tokens = tokenizer.encode(context + continuation, true, false);
  item.context = static_cast<int>(tokenizer.encode(context, true, false).size());
  if (item.context == 0) {
    std::optional<int> first = begin_token(tokenizer);
    if (!first && !config.eos_ids.empty()) first = config.eos_ids[0];
    if (!first)
      throw Error(ErrorKind::kUsage, fmt::format("{}: the context is empty and the model has no token that "
                                                 "texts begin with",
                                                 where));
    item.tokens.insert(item.tokens.begin(), *first);
    item.context = 1;
  }
  if (std::ssize(item.tokens) <= item.context) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{}: the continuation \"{}\" gives no token of its own", where, escape(continuation, 60)));
  }
  if (std::ssize(item.tokens) > config.context) {
    throw Error(ErrorKind::kUsage, fmt::format("{}: {} tokens do not fit the model's context of {}", where,
                                               item.tokens.size(), config.context));
  }
  return item;
}

void add_question(const JsonObject& line, const Tokenizer& tokenizer, const ModelConfig& config, Task& task) {
  const size_t question = task.answers.size();
  const std::string context = line.string("context");
  std::vector<std::string> continuations;
  int answer = -1;
  if (line.has("completion")) {
    if (line.has("choices")) line.fail("choices", "stands beside \"completion\"; a question has one of them");
    continuations.push_back(line.string("completion"));
  } else {
    for (const json::value& choice : line.array("choices")) {
      if (!choice.is_string()) line.fail("choices", "must be a list of texts");
      continuations.emplace_back(choice.as_string());
    }
    if (continuations.size() < 2 || continuations.size() > kMostChoices)
      line.fail("choices", fmt::format("has {} entries, must have 2 to {}", continuations.size(), kMostChoices));
    answer = static_cast<int>(line.integer("answer", 0, std::ssize(continuations) - 1));
  }
  for (size_t c = 0; c < continuations.size(); ++c) {
    task.items.push_back(make_item(context, continuations[c], tokenizer, config, line.where()));
    task.items.back().question = question;
    task.items.back().choice = c;
  }
  task.answers.push_back(answer);
  task.origin.push_back(line.where());
}

// A continuation under way.
struct Slot {
  size_t item = 0;
  int position = 0;  // of the next row
  std::vector<int> blocks;
};

class Scorer {
 public:
  Scorer(Model& model, const Policy& policy, const Task& task, int batch, RoutingCounters& routing)
      : model_(model), policy_(policy), task_(task), routing_(routing), kv_(make_cache(model, task, batch)) {
    for (size_t i = 0; i < task.items.size(); ++i) order_.push_back(i);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return task.items[a].choice < task.items[b].choice; });
    scores_.resize(task.items.size());
    slots_.reserve(static_cast<size_t>(batch));
    batch_ = static_cast<size_t>(batch);
  }

  std::vector<ItemScore> run(const std::function<void(double)>& progress) {
    while (true) {
      while (slots_.size() < batch_ && next_ < order_.size()) begin(order_[next_++]);
      if (slots_.empty()) return std::move(scores_);
      step();
      if (progress) progress(static_cast<double>(next_ - slots_.size()) / static_cast<double>(order_.size()));
    }
  }

 private:
  static KvCache make_cache(const Model& model, const Task& task, int batch) {
    size_t longest = 1;
    for (const TaskItem& item : task.items) longest = std::max(longest, item.tokens.size());
    return {model.config(), KvCache::blocks_for(static_cast<int64_t>(longest)) * KvCache::kBlockTokens * batch,
            model.kv_format()};
  }

  // The context but for its last token, as a prompt.
  void begin(size_t i) {
    const TaskItem& item = task_.items[i];
    Slot slot{i, 0, {}};
    CARPOOL_CHECK(kv_.take(KvCache::blocks_for(std::ssize(item.tokens)), slot.blocks));
    while (slot.position < item.context - 1) {
      rows_.clear();
      for (int n = 0; n < kChunk && slot.position < item.context - 1; ++n, ++slot.position) {
        rows_.push(item.tokens[static_cast<size_t>(slot.position)], slot.position, slot.blocks.data(),
                   {Phase::kPrefill, false, 0}, false);
      }
      model_.forward(rows_, kv_, policy_, {});
    }
    slots_.push_back(std::move(slot));
  }

  // One token of every slot.
  void step() {
    rows_.clear();
    for (const Slot& s : slots_) {
      rows_.push(task_.items[s.item].tokens[static_cast<size_t>(s.position)], s.position, s.blocks.data(),
                 {Phase::kDecode, false, 0}, true);
    }
    const Matrix logits = model_.forward(rows_, kv_, policy_, {.routing = &routing_});
    for (size_t b = 0; b < slots_.size(); ++b) {
      Slot& s = slots_[b];
      const TaskItem& item = task_.items[s.item];
      const std::span<const float> row(logits.row(static_cast<int>(b)), static_cast<size_t>(logits.cols));
      const int token = item.tokens[static_cast<size_t>(++s.position)];
      const double nats = log_sum_exp(row) - row[static_cast<size_t>(token)];
      if (!std::isfinite(nats)) {
        throw Error(ErrorKind::kMalformed, fmt::format("the model's logits are not finite at {} position {}",
                                                       task_.origin[item.question], s.position));
      }
      scores_[s.item].log_likelihood -= nats;
      scores_[s.item].greedy = scores_[s.item].greedy && argmax(row) == token;
    }
    std::erase_if(slots_, [&](Slot& s) {
      const bool done = s.position + 1 == std::ssize(task_.items[s.item].tokens);
      if (done) kv_.give_back(s.blocks);
      return done;
    });
  }

  Model& model_;
  const Policy& policy_;
  const Task& task_;
  RoutingCounters& routing_;
  KvCache kv_;
  Rows rows_;
  size_t batch_ = 1, next_ = 0;
  std::vector<size_t> order_;
  std::vector<Slot> slots_;
  std::vector<ItemScore> scores_;
};

// What is made of one question's items.
struct Verdict {
  int choice = 0, choice_norm = 0;  // cloze: 1 when every token is the most likely one
  double right = 0, right_norm = 0;
  double log_likelihood = 0;  // of the right continuation
};

std::vector<Verdict> judge(const Task& task, const std::vector<ItemScore>& scores) {
  std::vector<Verdict> out(task.answers.size());
  std::vector<double> best(out.size(), -HUGE_VAL), best_norm = best;
  for (size_t i = 0; i < task.items.size(); ++i) {
    const TaskItem& item = task.items[i];
    Verdict& v = out[item.question];
    const double ll = scores[i].log_likelihood, norm = ll / item.characters;
    const int answer = task.answers[item.question], choice = static_cast<int>(item.choice);
    if (answer < 0 || answer == choice) v.log_likelihood = ll;
    if (answer < 0) {
      v.choice = v.choice_norm = scores[i].greedy;
      v.right = v.right_norm = scores[i].greedy;
      continue;
    }
    if (ll > best[item.question]) {
      best[item.question] = ll;
      v.choice = choice;
      v.right = choice == answer;
    }
    if (norm > best_norm[item.question]) {
      best_norm[item.question] = norm;
      v.choice_norm = choice;
      v.right_norm = choice == answer;
    }
  }
  return out;
}

std::string share_text(const Estimate& e, bool sign = false) {
  return estimate_text({100 * e.value, 100 * e.lo, 100 * e.hi}, 2, sign) + " %";
}

}  // namespace

Task read_task(const std::vector<std::string>& paths, const Tokenizer& tokenizer, const ModelConfig& config) {
  Task task;
  for (const std::string& path : paths) {
    for_each_line(read_text_file(path), [&](const Line& line) {
      const std::string where = line.where(path);
      if (task.answers.size() == kMostQuestions)
        throw Error(ErrorKind::kUsage, fmt::format("{}: more than {} questions", where, kMostQuestions));
      const json::value value = parse_json(line.text, where);
      add_question(JsonObject(value, where), tokenizer, config, task);
    });
  }
  if (task.answers.empty()) throw Error(ErrorKind::kUsage, fmt::format("{}: no questions", escape(paths[0], 400)));
  return task;
}

std::vector<ItemScore> score_items(Model& model, const Policy& policy, const Task& task, int batch,
                                   RoutingCounters& routing, const std::function<void(double)>& progress) {
  CARPOOL_CHECK(batch > 0);
  return Scorer(model, policy, task, batch, routing).run(progress);
}

TaskScore score_task(const Task& task, const std::vector<ItemScore>& scores, const std::vector<ItemScore>& plain) {
  const std::vector<Verdict> own = judge(task, scores), reference = judge(task, plain);
  std::vector<double> acc, norm, acc_delta, norm_delta, ll_delta;
  TaskScore out;
  out.questions = static_cast<int>(own.size());
  for (size_t q = 0; q < own.size(); ++q) {
    acc.push_back(own[q].right);
    norm.push_back(own[q].right_norm);
    acc_delta.push_back(own[q].right - reference[q].right);
    norm_delta.push_back(own[q].right_norm - reference[q].right_norm);
    ll_delta.push_back(own[q].log_likelihood - reference[q].log_likelihood);
    out.changed += (own[q].choice != reference[q].choice) / static_cast<double>(own.size());
  }
  out.acc = bootstrap(acc, mean);
  out.acc_norm = bootstrap(norm, mean);
  out.acc_delta = bootstrap(acc_delta, mean);
  out.acc_norm_delta = bootstrap(norm_delta, mean);
  out.log_likelihood_delta = bootstrap(ll_delta, mean);
  return out;
}

Table task_table(const std::vector<TaskScore>& scores) {
  Table table{"Questions answered by log-likelihood",
              {"policy", "batch", "experts", "plain", "acc", "against topk", "acc_norm", "against topk ", "changed",
               "nats of the right answer"},
              {}};
  for (const TaskScore& s : scores) {
    const auto layers = static_cast<double>(std::max<int64_t>(s.routing.layers, 1));
    table.rows.push_back({s.policy, std::to_string(s.batch),
                          number_text(static_cast<double>(s.routing.distinct_experts) / layers, 2),
                          number_text(static_cast<double>(s.routing.distinct_plain) / layers, 2), share_text(s.acc),
                          share_text(s.acc_delta, true), share_text(s.acc_norm), share_text(s.acc_norm_delta, true),
                          percent_text(s.changed), estimate_text(s.log_likelihood_delta, 4, true)});
  }
  return table;
}

json::object task_json(const TaskScore& s) {
  json::object row{{"policy", s.policy}, {"batch", s.batch}, {"questions", s.questions}};
  put_estimate(row, "acc", s.acc);
  put_estimate(row, "acc_norm", s.acc_norm);
  put_estimate(row, "acc_delta", s.acc_delta);
  put_estimate(row, "acc_norm_delta", s.acc_norm_delta);
  put_estimate(row, "log_likelihood_delta", s.log_likelihood_delta);
  put_number(row, "changed", s.changed);
  for (const auto& entry : routing_json(s.routing)) row[entry.key()] = entry.value();
  return row;
}

}  // namespace carpool
