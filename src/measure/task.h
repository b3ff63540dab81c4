// Tasks scored by log-likelihood: multiple choice and cloze, on a user's own questions.
//
// Owns the file of questions, its cutting into tokens, the batched scoring of continuations under a policy, and acc and
// acc_norm as lm-evaluation-harness defines them: the right choice has the largest log-likelihood, or the largest per
// character. Read next: lockstep.h, for plain text.
//
// A file holds one JSON object a line:
//   {"context": "...", "choices": ["...", "..."], "answer": 0}   multiple choice; the answer is an index from 0
//   {"context": "...", "completion": "..."}                      cloze: is every token the most likely one?
// A continuation is scored behind its context as one text; spaces that end a context belong to the continuation.
//
// As in serving, the context but for its last token is a prompt and routed plainly; its last token and the continuation
// are decode rows under the policy. B continuations are decoded in step, a finished one's place is taken by the next;
// continuations of one question stand far apart, so that a step's rows are strangers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "measure/bench_report.h"
#include "model/model.h"
#include "routing/policy.h"
#include "text/tokenizer.h"

namespace carpool {

struct TaskItem {
  size_t question = 0, choice = 0;
  std::vector<int> tokens;  // context and continuation
  int context = 0;          // tokens of the context, at least 1
  double characters = 1;    // of the continuation without the spaces it begins with, for acc_norm
};

struct Task {
  std::vector<TaskItem> items;      // by question and choice
  std::vector<int> answers;         // [questions] index of the right choice; -1 for cloze
  std::vector<std::string> origin;  // [questions] "FILE: line 3"
};

// Error{kMissing}; kMalformed naming the line that is no question; kUsage for continuations without a token and for
// questions longer than the model's context.
Task read_task(const std::vector<std::string>& paths, const Tokenizer& tokenizer, const ModelConfig& config);

struct ItemScore {
  double log_likelihood = 0;  // of the continuation, nats
  bool greedy = true;         // every token is the most likely one
};

// [items]. Error{kMalformed} when logits are not finite.
std::vector<ItemScore> score_items(Model& model, const Policy& policy, const Task& task, int batch,
                                   RoutingCounters& routing, const std::function<void(double)>& progress = {});

struct TaskScore {
  std::string policy;
  int batch = 0;
  int questions = 0;
  Estimate acc, acc_norm;              // interval by bootstrap over questions; cloze: acc_norm is acc
  Estimate acc_delta, acc_norm_delta;  // against topk on the same questions
  Estimate log_likelihood_delta;       // of the right continuations, nats each
  double changed = 0;                  // share of questions that are answered otherwise than under topk
  RoutingCounters routing;             // of decode rows' steps
};

TaskScore score_task(const Task& task, const std::vector<ItemScore>& scores, const std::vector<ItemScore>& plain);
Table task_table(const std::vector<TaskScore>& scores);
json::object task_json(const TaskScore& score);

}  // namespace carpool
