// Specs: what is accepted, how it is written back, and the one sentence for each way to get it wrong.
#include "routing/registry.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace carpool {
namespace {

std::string spec(const std::string& text) { return make_policy(text)->spec(); }

std::string error(const std::string& text) {
  try {
    make_policy(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kConfig) << text;
    return e.what();
  }
  return "accepted";
}

const char kOeaArguments[] =
    "; its arguments are k0, table, t, p, k_max, max_p, floor, norm, min_batch, max_rows, underfill, lend, guard";

TEST(Registry, ListsTheKnownPoliciesOnce) {
  std::vector<std::string> names;
  for (const PolicyInfo& info : policy_list()) {
    EXPECT_FALSE(info.summary.empty()) << info.name;
    EXPECT_EQ(std::count(names.begin(), names.end(), info.name), 0) << info.name;
    names.push_back(info.name);
  }
  for (const char* name : {"topk", "prune", "oea"}) EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
}

TEST(Registry, TheCanonicalSpecDropsDefaultsAndFixesTheOrder) {
  EXPECT_EQ(spec("topk"), "topk");
  EXPECT_EQ(spec("topk:"), "topk");
  EXPECT_EQ(spec("oea:k0=5"), "oea:k0=5");
  EXPECT_EQ(spec("oea:min_batch=2,k0=5,p=1,underfill=fewer,lend=none,guard=on"), "oea:k0=5");
  EXPECT_EQ(spec("oea:guard=off,lend=prefill,underfill=keep,max_rows=9,min_batch=1,max_p=7,k_max=6,p=0.50,k0=05"),
            "oea:k0=5,p=0.5,k_max=6,max_p=7,min_batch=1,max_rows=9,underfill=keep,lend=prefill,guard=off");
}

TEST(Registry, ACanonicalSpecMakesTheSamePolicyAgain) {
  for (const PolicyInfo& info : policy_list()) {
    for (const std::string& example : info.examples) EXPECT_EQ(spec(spec(example)), spec(example));
  }
}

TEST(Registry, AnUnknownPolicyIsNamedWithTheKnownOnes) {
  std::string known;
  for (const PolicyInfo& info : policy_list()) known += (known.empty() ? "" : ", ") + info.name;
  EXPECT_EQ(error("oae:k0=5"), "unknown policy \"oae\"; known policies: " + known);
  EXPECT_EQ(error(""), "unknown policy \"\"; known policies: " + known);
  EXPECT_EQ(error("Oea:k0=5"), "unknown policy \"Oea\"; known policies: " + known);
}

TEST(Registry, EveryBadArgumentIsNamedInOneSentence) {
  const std::pair<const char*, const char*> cases[] = {
      {"oea", "argument \"k0\" is required"},
      {"oea:k1=5", "unknown argument \"k1\""},
      {"oea:k0=5,k0=5", "argument \"k0\" is given twice"},
      {"oea:k0", "argument \"k0\" is not key=value"},
      {"oea:k0=5,", "the arguments end with a comma"},
      {"oea:,k0=5", "argument \"\" is not key=value"},
      {"oea:k0=", "argument \"k0\" must be an integer or auto or table, got \"\""},
      {"oea:k0=five", "argument \"k0\" must be an integer or auto or table, got \"five\""},
      {"oea:k0=5.5", "argument \"k0\" must be an integer or auto or table, got \"5.5\""},
      {"oea:k0= 5", "argument \"k0\" must be an integer or auto or table, got \" 5\""},
      {"oea:k0=-1", "argument \"k0\" must be 0 to 1048576, got -1"},
      {"oea:k0=99999999999999999999", "argument \"k0\" must be 0 to 1048576, got 99999999999999999999"},
      {"oea:k0=1,k_max=0", "argument \"k_max\" must be 1 to 1048576, got 0"},
      {"oea:k0=1,min_batch=0", "argument \"min_batch\" must be 1 to 1048576, got 0"},
      {"oea:k0=1,p=0", "argument \"p\" must be above 0, got 0"},
      {"oea:k0=1,p=nan", "argument \"p\" must be a finite number, got \"nan\""},
      {"oea:k0=1,p=0.5x", "argument \"p\" must be a finite number, got \"0.5x\""},
      {"oea:k0=1,underfill=less", "argument \"underfill\" must be fewer or keep, got \"less\""},
      {"oea:k0=table", "k0=table needs the file of the layers' k0, table=FILE"},
      {"oea:k0=2,table=f", "table is for k0=table, but k0 is 2"},
      {"oea:k0=auto,t=3,table=f", "table is for k0=table, but k0 is auto"},
      {"oea:k0=table,table=f,t=3", "t is for k0=auto, but k0 is table"},
      {"oea:k0=5//3", "argument \"k0\" must be an integer, got \"\""},
      {"oea:k0=5/-1", "argument \"k0\" must be 0 to 1048576, got -1"},
      {"oea:k0=5/auto", "argument \"k0\" must be an integer, got \"auto\""},
      {"oea:k0=5/3,t=3", "t is for k0=auto, but k0 is a list"},
      {"oea:k0=5/3,table=f", "table is for k0=table, but k0 is a list"},
      {"oea:k0=1,guard=", "argument \"guard\" must be on or off, got \"\""},
  };
  for (const auto& [text, what] : cases) {
    EXPECT_EQ(error(text), std::string("policy oea: ") + what + kOeaArguments) << text;
  }
  EXPECT_EQ(error("topk:k=5"), "policy topk: unknown argument \"k\"; it has no arguments");
}

TEST(Registry, AnArgumentThatNobodyReadsIsAnError) {
  const std::vector<ArgumentInfo> known = {{"a", "", ""}, {"b", "", ""}};
  Arguments arguments("test", known, "a=1,b=2");
  arguments.required_integer("a", 0, 9);
  EXPECT_THROW(arguments.check_all_read(), Error);
  arguments.required_integer("b", 0, 9);
  EXPECT_NO_THROW(arguments.check_all_read());
}

}  // namespace
}  // namespace carpool
