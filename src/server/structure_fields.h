// The many spellings of a wish for structure: response_format of OpenAI, json_schema and regex of SGLang and llama.cpp,
// guided_* and structured_outputs of vLLM, output_format of Anthropic.
//
// What the structure means and which schemas there are: grammar/structure.h. Nothing is compiled here.
#pragma once

#include <optional>

#include "grammar/structure.h"
#include "server/fields.h"

namespace carpool {

// Of OpenAI's endpoints. Throws ApiError 400: invalid_value for two wishes at once, missing_field, unsupported_value
// for grammars in languages that we do not speak.
std::optional<StructureSpec> read_structure(const Fields& body);
// Of SGLang's sampling_params.
std::optional<StructureSpec> read_native_structure(const Fields& sampling_params);
// Of /v1/messages: output_format, or output_config.format.
std::optional<StructureSpec> read_messages_structure(const Fields& body);

}  // namespace carpool
