// Scores of questions from log-likelihoods that were made up: what acc, acc_norm, changed and the differences are.
#include "measure/task.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

// Questions with choices of so many characters each, and the right one; -1 is a cloze of one continuation.
struct Question {
  std::vector<double> characters;
  int answer;
};

Task task_of(const std::vector<Question>& questions) {
  Task task;
  for (const Question& q : questions) {
    for (size_t c = 0; c < q.characters.size(); ++c) {
      TaskItem item;
      item.question = task.answers.size();
      item.choice = c;
      item.characters = q.characters[c];
      task.items.push_back(item);
    }
    task.answers.push_back(q.answer);
    task.origin.emplace_back("a test");
  }
  return task;
}

TEST(Task, TheRightChoiceIsTheLikeliestOrTheLikeliestPerCharacter) {
  const Task task = task_of({{{2, 8}, 0}, {{2, 8}, 1}, {{4, 4, 4}, 2}});
  const std::vector<ItemScore> scores = {{-3, true}, {-4, true},               // 1.5 and 0.5 a character
                                         {-3, true}, {-4, true},               // the same, the other is right
                                         {-5, true}, {-5, true}, {-6, true}};  // a tie is the first one's
  const TaskScore s = score_task(task, scores, scores);
  EXPECT_EQ(s.questions, 3);
  EXPECT_DOUBLE_EQ(s.acc.value, 1.0 / 3) << "only the first question's right choice is the likeliest";
  EXPECT_DOUBLE_EQ(s.acc_norm.value, 1.0 / 3) << "only the second's is, per character";
  EXPECT_EQ(s.changed, 0);
  EXPECT_EQ(s.acc_delta.value, 0);
  EXPECT_EQ(s.log_likelihood_delta.value, 0);
}

TEST(Task, AClozeIsRightWhenEveryTokenIsTheMostLikely) {
  const Task task = task_of({{{5}, -1}, {{5}, -1}});
  const std::vector<ItemScore> scores = {{-1, true}, {-0.5, false}};
  const TaskScore s = score_task(task, scores, scores);
  EXPECT_DOUBLE_EQ(s.acc.value, 0.5);
  EXPECT_DOUBLE_EQ(s.acc_norm.value, 0.5);
}

TEST(Task, APolicyIsComparedOnTheSameQuestions) {
  const Task task = task_of({{{1, 1}, 0}, {{1, 1}, 0}, {{1, 1, 1}, 0}, {{3}, -1}});
  const std::vector<ItemScore> plain = {{-1, true}, {-2, true}, {-2, true}, {-1, true},
                                        {-3, true}, {-2, true}, {-4, true}, {-1, true}};
  std::vector<ItemScore> scores = plain;
  scores[0].log_likelihood = -4;  // was right, is wrong
  scores[2].log_likelihood = 0;   // was wrong, is right
  scores[6].log_likelihood = -1;  // wrong, in another way
  const TaskScore s = score_task(task, scores, plain);
  EXPECT_DOUBLE_EQ(s.acc.value, 0.5);
  EXPECT_DOUBLE_EQ(s.acc_delta.value, 0) << "one lost, one won";
  EXPECT_DOUBLE_EQ(s.changed, 0.75) << "wrong in another way is changed, too";
  EXPECT_DOUBLE_EQ(s.log_likelihood_delta.value, (-3.0 + 2.0) / 4) << "of the right choices and the cloze";
  scores = plain;
  scores[7].greedy = false;
  EXPECT_DOUBLE_EQ(score_task(task, scores, plain).acc_delta.value, -0.25);
  EXPECT_DOUBLE_EQ(score_task(task, scores, plain).changed, 0.25);
}

}  // namespace
}  // namespace carpool
