// See output_plan.h.
#include "server/output_plan.h"

#include <fmt/format.h>

#include "base/checksum.h"

namespace carpool {
namespace {

// An answer that begins within a call has no reasoning. What the request says of thinking itself counts more.
void stop_thinking(Chat& chat) {
  for (const char* name : {"enable_thinking", "thinking"}) {
    if (!chat.variables.contains(name)) chat.variables[name] = false;
  }
}

std::string prompt_text(const std::vector<Piece>& pieces) {
  constexpr size_t kEnough = 64;  // bytes from the end, more than any tag
  const std::string text = join(pieces);
  const size_t end = text.find_last_not_of(" \t\r\n");
  const size_t size = end == std::string::npos ? 0 : end + 1;
  return text.substr(size > kEnough ? size - kEnough : 0, kEnough);
}

void check_tools(const Served& served, const Chat& chat) {
  if (!chat.tools.wanted() || served.format.calls) return;
  throw unsupported(
      "tools",
      "tools need a parser of calls, and the model's chat template shows none that this server knows; its "
      "operator can name one with --tool-call-parser");
}

}  // namespace

Prompt plan_output(const Served& served, Chat chat, const Fields* fields, Generation& generation) {
  check_tools(served, chat);
  auto plan = std::make_shared<OutputPlan>();
  plan->format = served.format;
  plan->options.separate_reasoning = !fields || fields->boolean_or("separate_reasoning", true);
  plan->stream_reasoning = !fields || fields->boolean_or("stream_reasoning", true);
  plan->must_call = chat.tools.forced();
  plan->past_calls = chat.past_calls;
  if (chat.tools.wanted()) plan->options.functions = chat.tools.functions;
  if (!chat.tools.parallel || chat.tools.choice == ToolWish::Choice::kNamed) plan->options.max_calls = 1;
  if (plan->must_call) {
    if (chat.continue_final) {
      throw invalid_value("tool_choice", "tool_choice that asks for a call excludes continuing the last message");
    }
    stop_thinking(chat);
  }
  std::vector<Piece> pieces = render(served.chat_template, served.tokenizer_config, chat);
  plan->options.prompt = reasoning_at_end(plan->format, prompt_text(pieces));
  if (plan->must_call) {
    plan->forced = forced_call(plan->format, chat.tools.named);
    const bool open = plan->options.prompt == PromptEnd::kOpen;
    pieces.push_back({(open ? std::string(reasoning_close(plan->format)) : std::string()) + plan->forced, true});
    plan->options.prompt = PromptEnd::kClosed;
  }
  if (!plan->format.reasoning && !plan->options.functions) return encode_prompt(served.tokenizer, pieces);
  generation.request.show_special = plan->options.functions ? served.format_tokens : served.reasoning_tokens;
  generation.output = std::move(plan);
  return encode_prompt(served.tokenizer, pieces);
}

std::string call_id(const OutputPlan& plan, const char* prefix, const std::string& answer, int choice, int index,
                    const std::string& function) {
  if (plan.format.calls_name() == std::string_view("kimi_k2")) {
    return fmt::format("functions.{}:{}", function, plan.past_calls + index);
  }
  const std::string facts = fmt::format("{}|{}|{}|{}", answer, choice, index, function);
  return fmt::format("{}{:016x}{:08x}", prefix, checksum64(facts), checksum64(facts + "|") & 0xffffffff);
}

}  // namespace carpool
