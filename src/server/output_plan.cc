// See output_plan.h.
#include "server/output_plan.h"

#include <fmt/format.h>

#include "base/checksum.h"
#include "text/parsers/formats.h"

namespace carpool {
namespace {

std::vector<std::string> tags_of(const OutputFormat& format) {
  std::vector<std::string> out;
  for (const std::string_view tag : format.tags()) out.emplace_back(tag);
  return out;
}

// Where the model may still reason, what was asked for begins behind that. The parser takes more than the closing tag
// for the end of reasoning, so nothing of that may be written there. A prompt that says nothing of reasoning is that of
// a model which opens it itself, or goes without; in the middle of a message it no longer can.
void let_reason(OutputPlan& plan, const Chat& chat, StructureSpec& spec) {
  const CallFormat* calls = plan.options.functions ? plan.format.calls : nullptr;
  spec.tags = tags_of(plan.format);
  plan.options.structured = true;
  if (!plan.format.reasoning) return;
  const ReasoningFormat& format = *plan.format.reasoning;
  const PromptEnd prompt = plan.options.prompt;
  if (prompt == PromptEnd::kClosed || (chat.continue_final && prompt == PromptEnd::kNeither)) {
    plan.options.reasons = false;
    return;
  }
  FreeReasoning free;
  if (is_harmony(&format)) {
    free.open = "<|channel|>analysis<|message|>";
    free.close = "<|end|><|start|>assistant";
    free.stops = spec.tags;
    free.optional = true;
    if (!calls) spec.openings = {"<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"};
    spec.reasoning = std::move(free);
    return;
  }
  free.close = format.close;
  free.stops = {free.close};
  free.lines = true;
  if (prompt == PromptEnd::kNeither && !format.open_by_default) {
    free.open = format.open;
    free.optional = true;
  }
  if (calls) {  // in reasoning, they end it
    free.stops.emplace_back(calls->open);
    if (!calls->around.empty()) free.stops.emplace_back(calls->around.front());
    free.unclosed = true;
  }
  spec.reasoning = std::move(free);
}

bool is_strict(const json::value& tool) {
  const json::value* strict = tool.at("function").as_object().if_contains("strict");
  return strict && strict->is_bool() && strict->get_bool();
}

// Calls, and nothing else.
StructureSpec call_structure(const OutputPlan& plan, const ToolWish& wish) {
  const CallFormat& format = *plan.format.calls;
  const CallSpelling& spelling = format.spelling;
  StructureSpec spec;
  spec.kind = StructureSpec::Kind::kFrames;
  spec.path = "tools";
  spec.prefix = format.forced("");
  spec.between = spelling.next;
  spec.suffix = spelling.tail;
  spec.max = is_harmony(&format) ? 1 : plan.options.max_calls;
  for (size_t i = 0; i < wish.functions->size(); ++i) {
    const ToolFunction& function = (*wish.functions)[i];
    if (!wish.named.empty() && wish.named != function.name) continue;
    FramedSchema frame;
    frame.before = format.forced(function.name).substr(spec.prefix.size());
    frame.after = spelling.finish;
    frame.schema = function.parameters.empty() ? json::object{{"type", "object"}} : function.parameters;
    frame.path = fmt::format("tools[{}].function.parameters", i);
    frame.lenient = !is_strict(wish.tools[i]);
    if (!spelling.key_open.empty()) {
      frame.tagged = TaggedArguments{std::string(spelling.key_open), std::string(spelling.value_open),
                                     std::string(spelling.value_close)};
    }
    spec.frames.push_back(std::move(frame));
  }
  return spec;
}

// What the answer may call.
std::shared_ptr<const std::vector<ToolFunction>> callable(const ToolWish& wish) {
  if (wish.choice != ToolWish::Choice::kNamed) return wish.functions;
  std::vector<ToolFunction> named;
  if (const ToolFunction* function = find_function(*wish.functions, wish.named)) named.push_back(*function);
  return std::make_shared<const std::vector<ToolFunction>>(std::move(named));
}

void check_structure(const Chat& chat, const Generation& generation) {
  if (!generation.structure || !chat.tools.wanted()) return;
  throw unsupported("tools", "tools and structured output exclude each other, but for tool_choice none");
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
  check_structure(chat, generation);
  auto plan = std::make_shared<OutputPlan>();
  plan->format = served.format;
  plan->options.separate_reasoning = !fields || fields->boolean_or("separate_reasoning", true);
  plan->stream_reasoning = !fields || fields->boolean_or("stream_reasoning", true);
  plan->must_call = chat.tools.forced();
  plan->past_calls = chat.past_calls;
  if (chat.tools.wanted()) plan->options.functions = callable(chat.tools);
  if (!chat.tools.parallel || chat.tools.choice == ToolWish::Choice::kNamed) plan->options.max_calls = 1;
  if (plan->must_call && chat.continue_final) {
    throw invalid_value("tool_choice", "tool_choice that asks for a call excludes continuing the last message");
  }
  const std::vector<Piece> pieces = render(served.chat_template, served.tokenizer_config, chat);
  plan->options.prompt = reasoning_at_end(plan->format, prompt_text(pieces));
  if (plan->must_call) {
    generation.structure = call_structure(*plan, chat.tools);
  }
  if (generation.structure) let_reason(*plan, chat, *generation.structure);
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
