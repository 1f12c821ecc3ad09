/* Small templates in the styles that models are released with, and what a form says of each. Marks stand in lines of
 * tdm_chat_form_describe(); not every line is named. */
#ifndef TDM_ENGINE_CHAT_FORMS_TEST_TEMPLATES_H
#define TDM_ENGINE_CHAT_FORMS_TEST_TEMPLATES_H

struct style {
        const char *name, *template;
        const char *lines[24];
};

#define TOOLS_SHOWN "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
/* Turns as ChatML writes them; the assistant's body stands between. */
#define TURNS(body, prompt)                                                                                            \
        TOOLS_SHOWN "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n" body                \
                    "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"           \
                    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n" prompt "{% endif %}"
#define CONTENT "{{ m.content or '' }}"
#define THOUGHT "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
#define CALLS(body)                                                                                                    \
        "{% if m.tool_calls %}{% for c in m.tool_calls %}{% set f = c.function %}" body "{% endfor %}{% endif %}"
/* A text that explains the tools. */
#define EXPLAINED(text) "{% if tools %}" text "{% endif %}" TURNS(THOUGHT CONTENT, "")
/* Arguments one by one: a text for strings and one for the rest. */
#define EACH(string, other)                                                                                            \
        "{% for k, v in f.arguments.items() %}{% if v is string %}" string "{% else %}" other "{% endif %}{% endfor "  \
        "%}"

static const struct style styles[] = {
        { "qwen3",
          TURNS(THOUGHT CONTENT CALLS(
                        "{{ '\n' if not loop.first or m.content }}<tool_call>\n{\"name\": \"{{ f.name }}\", "
                        "\"arguments\": {{ f.arguments | tojson }}}\n</tool_call>"),
                "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"),
          { "calls: json", "tools: shown", "arguments: object", "start: <tool_call>",
            "before: <tool_call>\\n{\"name\": \"", "between: \", \"arguments\": ",
            "gap: }\\n</tool_call>\\n<tool_call>\\n{\"name\": \"", "after: }\\n</tool_call>", "think: <think>",
            "think end: </think>", "thinking key: reasoning_content", "switch: enable_thinking", "prompt: silent",
            "prompt on: silent", "prompt off: closed", "end: <|im_end|>" } },
        { "qwen3-thinking",
          TURNS(THOUGHT CONTENT, "<think>\n"),
          { "calls: generic", "why: the template shows no calls of earlier turns", "tools: shown", "think: <think>",
            "prompt: open", "prompt off: open" } },
        /* Calls are shown in the text that explains the tools, and not in turns. */
        { "smollm3",
          EXPLAINED("in <tool_call></tool_call> tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
                    "<args-json-object>}\n</tool_call>"),
          { "calls: json", "!why", "tools: shown", "!arguments", "start: <tool_call>",
            "before: <tool_call>\\n{\"name\": \"", "between: \", \"arguments\": ",
            "gap: }\\n</tool_call>\\n<tool_call>\\n{\"name\": \"", "after: }\\n</tool_call>", "think: <think>" } },
        { "tags with a list",
          EXPLAINED("The format:\n<tool_call>[\n{\"name\": \"func_name1\", \"arguments\": {\"a\": \"b\", \"c\": 1}},\n"
                    "... (more tool calls as required)\n]</tool_call>"),
          { "calls: json", "start: <tool_call>", "before: <tool_call>[\\n{\"name\": \"", "gap: }, {\"name\": \"",
            "after: }]</tool_call>" } },
        { "functools",
          EXPLAINED("as functools[{\"name\": \"a_function\", \"parameters\": {}}, {\"name\": \"b\", \"parameters\": "
                    "{\"x\": [1]}}, ...]"),
          { "calls: json", "start: functools[", "before: functools[{\"name\": \"",
            "between: \", \"parameters\": ", "after: }]" } },
        { "special pieces",
          EXPLAINED("so: <|call_start|>{\"name\": \"$NAME\", \"arguments\": arguments as JSON}<|call_end|>, or"
                    "<|call_start|>{\"name\": \"other\", \"arguments\": {}}<|call_end|>"),
          { "calls: json", "start: <|call_start|>", "after: }<|call_end|>" } },
        { "wide-example",
          EXPLAINED("<tool_call>\n{\"name\":  \"f\",  \"arguments\":  {}}\n</tool_call>"),
          { "calls: json", "before: <tool_call>\\n{\"name\":  \"", "between: \",  \"arguments\":  " } },
        { "two examples that differ",
          EXPLAINED("<a>{\"name\": \"f\", \"arguments\": {}}</a> or <b>{\"name\": \"f\", \"arguments\": {}}</b>"),
          { "calls: generic", "why: the template's text shows calls in a way that is not clear" } },
        { "words alone",
          EXPLAINED("Respond with <|tool_call|> followed by a JSON list of tools used."),
          { "calls: generic", "why: the template shows no calls of earlier turns" } },
        { "a tag that is left open",
          EXPLAINED("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n"),
          { "calls: generic", "why: the template shows no calls of earlier turns" } },
        { "an example that is no JSON",
          EXPLAINED("<tool_call>{\"name\": \"f\", \"arguments\": {x: 1}}</tool_call>"),
          { "calls: generic", "why: the template shows no calls of earlier turns" } },
        { "a list that goes on in words",
          EXPLAINED("<tool_call>[{\"name\": \"f\", \"arguments\": {}} and so on]</tool_call>"),
          { "calls: generic", "why: the template shows no calls of earlier turns" } },
        { "tools in the form of calls",
          "{% if tools %}<tools>{% for t in tools %}<f>{\"name\": \"{{ t.function.name }}\", \"parameters\": {}}</f>"
          "{% endfor %}</tools>{% endif %}" TURNS(CONTENT, ""),
          { "calls: generic", "why: the template shows no calls of earlier turns" } },
        { "qwen3-coder",
          TURNS(CONTENT CALLS("{{ '\n' if not loop.first }}<tool_call>\n<function={{ f.name }}>\n"
                              "{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n"
                              "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
                              "</function>\n</tool_call>"),
                ""),
          { "calls: tagged", "before: <tool_call>\\n<function=", "open: >\\n<parameter=", "string: >\\n",
            "strings: bare", "value end: </parameter>", "next: \\n</parameter>\\n<parameter=",
            "gap: \\n</parameter>\\n</function>\\n</tool_call>\\n<tool_call>\\n<function=",
            "after: \\n</parameter>\\n</function>\\n</tool_call>",
            "empty gap: >\\n</function>\\n</tool_call>\\n<tool_call>\\n<function=",
            "empty after: >\\n</function>\\n</tool_call>", "end: <|im_end|>" } },
        { "glm",
          TOOLS_SHOWN
          "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}"
          "{% if m.reasoning_content %}{{ '\n' }}<think>{{ m.reasoning_content }}</think>{% else %}"
          "{{ '\n' }}<think></think>{% endif %}{% if m.content %}{{ '\n' + m.content }}{% endif %}" CALLS(
                  "{{ '\n' }}<tool_call>{{ f.name }}\n" EACH("<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v "
                                                             "}}</arg_value>\n",
                                                             "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v | tojson "
                                                             "}}</arg_value>\n") "</tool_call>") "{% else %}{{ '\n' + "
                                                                                                 "m.content }}{% endif "
                                                                                                 "%}{% endfor %}"
                                                                                                 "{% if "
                                                                                                 "add_generation_"
                                                                                                 "prompt "
                                                                                                 "%}<|assistant|>{{ "
                                                                                                 "'\n<think></think>' "
                                                                                                 "if enable_thinking "
                                                                                                 "is defined "
                                                                                                 "and not "
                                                                                                 "enable_thinking else "
                                                                                                 "'' }}{% endif %}",
          { "calls: tagged", "start: <tool_call>", "before: <tool_call>", "open: \\n<arg_key>",
            "string: </arg_key>\\n<arg_value>", "next: </arg_value>\\n<arg_key>", "value end: </arg_value>",
            "gap: </arg_value>\\n</tool_call>\\n<tool_call>", "after: </arg_value>\\n</tool_call>",
            "empty after: \\n</tool_call>", "think: <think>", "think end: </think>", "switch: enable_thinking",
            "prompt: silent", "prompt off: closed", "end: <|user|>" } },
        { "seed",
          TURNS(CONTENT CALLS("{{ '\n' }}<seed:tool_call>\n<function={{ f.name }}>\n" EACH(
                        "<parameter={{ k }}>{{ v }}</parameter>\n",
                        "<parameter={{ k }}>{{ v | tojson }}</parameter>\n") "</function>\n</seed:tool_call>"),
                ""),
          { "calls: tagged", "start: <seed:tool_call>", "string: >", "value end: </parameter>",
            "next: </parameter>\\n<parameter=" } },
        { "minimax",
          TURNS("{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}" CONTENT
                "{% if m.tool_calls %}{{ '\n' }}<minimax:tool_call>\n" CALLS("<invoke name=\"{{ f.name }}\">\n" EACH(
                        "<parameter name=\"{{ k }}\">{{ v }}</parameter>\n",
                        "<parameter name=\"{{ k }}\">{{ v | tojson }}"
                        "</parameter>\n") "</invoke>\n") "</minimax:tool_call>{% endif %}",
                "<think>\n"),
          { "calls: tagged", "start: <minimax:tool_call>", "before: <minimax:tool_call>\\n<invoke name=\"",
            "open: \">\\n<parameter name=\"", "gap: </parameter>\\n</invoke>\\n<invoke name=\"",
            "after: </parameter>\\n</invoke>\\n</minimax:tool_call>", "prompt: open" } },
        { "deepseek-dsml",
          TOOLS_SHOWN
          "{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>{% if m.reasoning_content %}"
          "<think>{{ m.reasoning_content }}{% endif %}</think>" CONTENT
          "{% if m.tool_calls %}{{ '\n\n' }}<｜DSML｜function_calls>\n" CALLS(
                  "<｜DSML｜invoke name=\"{{ f.name }}\">\n" EACH(
                          "<｜DSML｜parameter name=\"{{ k }}\" string=\"true\">{{ v }}</｜DSML｜parameter>\n",
                          "<｜DSML｜parameter name=\"{{ k }}\" string=\"false\">{{ v | tojson }}"
                          "</｜DSML｜parameter>\n") "</｜DSML｜invoke>\n") "</｜DSML｜function_calls>{% endif "
                                                                           "%}<｜end▁of▁sentence｜>{% else "
                                                                           "%}<｜User｜>{{ m.content }}"
                                                                           "{% endif %}{% endfor %}{% if "
                                                                           "add_generation_prompt %}<｜Assistant｜>"
                                                                           "{{ '<think>' if thinking else '</think>' "
                                                                           "}}{% endif %}",
          { "calls: tagged", "start: <｜DSML｜function_calls>", "string: \" string=\"true\">",
            "number: \" string=\"false\">", "value end: </｜DSML｜parameter>", "switch: thinking", "prompt: closed",
            "prompt on: open", "prompt off: closed", "think: <think>", "think end: </think>" } },
        { "gemma4",
          TOOLS_SHOWN
          "{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{% if m.role == "
          "'assistant' %}{% if m.reasoning %}"
          "<|channel>thought\n{{ m.reasoning }}<channel|>{% endif %}" CONTENT CALLS(
                  "<|tool_call>call:{{ f.name + '{' }}"
                  "{% for k, v in f.arguments.items() %}{{ k }}:{% if v is string %}<|\"|>{{ v }}<|\"|>{% else %}"
                  "{{ v | tojson }}{% endif %}{{ ',' if not loop.last }}{% endfor %}}<tool_call|>") "{% else %}{{ "
                                                                                                    "m.content }}{% "
                                                                                                    "endif "
                                                                                                    "%}<turn|>\n{% "
                                                                                                    "endfor %}{% if "
                                                                                                    "add_generation_"
                                                                                                    "prompt "
                                                                                                    "%}<|turn>model\n"
                                                                                                    "{% endif %}",
          { "calls: tagged", "start: <|tool_call>", "before: <|tool_call>call:", "open: {", "string: :<|\"|>",
            "number: :", "strings: marked", "close string: <|\"|>", "next: ,",
            "gap: }<tool_call|><|tool_call>call:", "after: }<tool_call|>", "empty after: {}<tool_call|>",
            "think: <|channel>thought", "think end: <channel|>", "thinking key: reasoning", "end: <turn|>" } },
        { "kimi-k3",
          TURNS(CONTENT CALLS(
                        "<|open|>call tool=\"{{ f.name }}\" index=\"{{ loop.index }}\"<|sep|>"
                        "{% for k, v in f.arguments.items() %}<|open|>argument key=\"{{ k }}\" type=\"{{ 'string' "
                        "if v is string else 'boolean' if v is boolean else 'number' if v is number else 'object' "
                        "if v is mapping else 'array' if v is iterable else 'null' }}\"<|sep|>"
                        "{{ v if v is string else v | tojson }}<|close|>argument<|sep|>{% endfor %}"
                        "<|close|>call<|sep|>"),
                ""),
          { "calls: tagged", "open: \" index=\"{INDEX}\"<|sep|><|open|>argument key=\"",
            "string: \" type=\"string\"<|sep|>", "number: \" type=\"number\"<|sep|>",
            "boolean: \" type=\"boolean\"<|sep|>", "null: \" type=\"null\"<|sep|>", "array: \" type=\"array\"<|sep|>",
            "object: \" type=\"object\"<|sep|>", "value end: <|close|>" } },
        { "mistral",
          "{{ bos_token }}" TOOLS_SHOWN
          "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls %}[TOOL_CALLS][" CALLS(
                  "{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}, \"id\": \"{{ c.id }}\"}"
                  "{{ ', ' if not loop.last }}") "]{% else %}{{ m.content }}{% endif %}{{ eos_token }}{% else %}"
                                                 "[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}",
          { "calls: json", "start: [TOOL_CALLS]", "before: [TOOL_CALLS][{\"name\": \"",
            "gap: , \"id\": \"{ID}\"}, {\"name\": \"", "after: , \"id\": \"{ID}\"}]", "end: </s>" } },
        { "magistral",
          "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.content is string %}{{ m.content }}{% else %}"
          "{% for p in m.content %}{{ '[THINK]' + p.thinking + '[/THINK]' if p.type == 'thinking' else p.text }}"
          "{% endfor %}{% endif %}" CALLS("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments if f.arguments is string else "
                                          "f.arguments | tojson }}") "{{ eos_token }}{% else %}[INST]{{ m.content }}"
                                                                     "[/INST]{% endif %}{% endfor %}",
          { "calls: json", "before: [TOOL_CALLS]", "between: [ARGS]", "gap: [TOOL_CALLS]", "think: [THINK]",
            "think end: [/THINK]", "thinking key: content" } },
        { "llama3.1",
          TOOLS_SHOWN "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
                      "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}"
                      "{% endif %}{% set f = m.tool_calls[0].function %}{\"name\": \"{{ f.name }}\", \"parameters\": "
                      "{{ f.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
                      "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
          { "calls: json", "!start", "before: {\"name\": \"", "between: \", \"parameters\": ", "!gap", "after: }",
            "end: <|eot_id|>" } },
        { "deepseek-r1",
          "{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>{% if m.tool_calls %}"
          "<｜tool▁calls▁begin｜>" CALLS(
                  "{{ '\n' if not loop.first }}<｜tool▁call▁begin｜>function"
                  "<｜tool▁sep｜>{{ f.name }}\n```json\n{{ '' + f.arguments }}\n```"
                  "<｜tool▁call▁end｜>") "<｜tool▁calls▁end｜>{% else %}{{ m.content.split('</think>')[-1] }}{% endif "
                                         "%}<｜end▁of▁sentence｜>"
                                         "{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}{% if "
                                         "add_generation_prompt %}<｜Assistant｜><think>\n"
                                         "{% endif %}",
          { "calls: json", "tools: not shown", "arguments: text", "start: <｜tool▁calls▁begin｜>",
            "between: \\n```json\\n", "gap: \\n```<｜tool▁call▁end｜>\\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "after: \\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "think: <think>", "prompt: open" } },
        { "kimi-k2",
          TURNS("{% if m.tool_calls %}<think>{{ m.reasoning_content }}</think>" CONTENT "<|calls_begin|>" CALLS(
                        "<|call_begin|>{{ c.id }}<|arguments|>{{ f.arguments | tojson }}<|call_end|>") "<|calls_end|>"
                                                                                                       "{% else "
                                                                                                       "%}" CONTENT
                                                                                                       "{% endif %}",
                ""),
          { "calls: json", "before: <|calls_begin|><|call_begin|>functions.", "between: :{INDEX}<|arguments|>",
            "gap: <|call_end|><|call_begin|>functions.", "after: <|call_end|><|calls_end|>", "think: <think>" } },
        { "apertus",
          TURNS(CONTENT
                "{% if m.tool_calls %}<|tools_prefix|>[" CALLS("{\"{{ f.name }}\": {{ f.arguments | tojson }}}{{ ', ' "
                                                               "if not loop.last }}") "]<|tools_suffix|>{% endif %}",
                ""),
          { "calls: json", "before: <|tools_prefix|>[{\"", "between: \": ", "gap: }, {\"",
            "after: }]<|tools_suffix|>" } },
        { "command",
          TOOLS_SHOWN
          "{% for m in messages %}<|START|><|{{ m.role }}|>{% if m.role == 'assistant' %}{% if m.reasoning_content %}"
          "<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>{% endif %}{% if m.tool_calls "
          "%}<|START_ACTION|>[\n" CALLS(
                  "    {\"tool_call_id\": \"{{ loop.index0 }}\", \"tool_name\": \"{{ f.name }}\", \"parameters\": "
                  "{{ f.arguments | tojson }}}{{ ',' if not loop.last }}\n") "]<|END_ACTION|>{% else %}"
                                                                             "<|START_RESPONSE|>{{ m.content "
                                                                             "}}<|END_RESPONSE|>{% endif %}{% else "
                                                                             "%}{{ m.content }}{% endif %}<|END|>"
                                                                             "{% endfor %}{% if add_generation_prompt "
                                                                             "%}<|START|><|assistant|>{% endif %}",
          { "calls: json", "start: <|START_ACTION|>", "think: <|START_THINKING|>", "think end: <|END_THINKING|>",
            "text: <|START_RESPONSE|>", "text end: <|END_RESPONSE|>", "after: }\\n]<|END_ACTION|>", "end: <|END|>" } },
        { "functionary",
          TOOLS_SHOWN "{% for m in messages %}<|start|>{{ m.role }}<|end_header|>{{ m.content or '' }}" CALLS(
                  "<function={{ f.name }}>{{ f.arguments | tojson }}</function>") "{{ '<|eom_id|>' if m.tool_calls "
                                                                                  "else '<|eot_id|>' }}{% endfor %}{% "
                                                                                  "if add_generation_prompt %}<|start|>"
                                                                                  "assistant<|end_header|>{% endif %}",
          { "calls: json", "start: <function=", "before: <function=", "between: >",
            "gap: </function><function=", "after: </function>", "end: <|eot_id|>", "end: <|eom_id|>" } },
        { "python",
          TURNS("{% if m.tool_calls %}<|tool_call_start|>\n" CALLS(
                        "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
                        "{{ ', ' if not loop.last }}{% endfor %})\n") "<|tool_call_end|>{% else %}" CONTENT
                                                                      "{% endif %}",
                ""),
          { "calls: tagged", "before: <|tool_call_start|>\\n", "open: (", "string: =", "strings: quoted", "next: , ",
            "gap: )\\n", "after: )\\n<|tool_call_end|>", "empty gap: ()\\n", "empty after: ()\\n<|tool_call_end|>" } },
        { "gpt-oss",
          TOOLS_SHOWN
          "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant{% if m.tool_calls %}"
          "{% set f = m.tool_calls[0].function %} to=functions.{{ f.name }}<|channel|>commentary json"
          "<|message|>{{ f.arguments | tojson }}<|call|>{% else %}<|channel|>final<|message|>{{ m.content }}"
          "<|return|>{% endif %}{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
          "{% endfor %}{{ reasoning_effort }}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
          { "calls: channelled", "think: <|channel|>analysis<|message|>", "think end: <|end|>",
            "text: <|channel|>final<|message|>", "effort: reasoning_effort", "end: <|return|>", "end: <|call|>" } },
        { "gemma3",
          "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content "
          "}}<end_of_turn>\n{% endfor %}"
          "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
          { "calls: generic", "why: the template shows no calls of earlier turns", "tools: not shown", "!think",
            "end: <end_of_turn>" } },
        { "printed-parts",
          "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: "
          "{% endif %}",
          { "calls: generic", "!think", "!end" } },
        { "arguments-first",
          TURNS(CONTENT CALLS("<call>{{ f.arguments | tojson }}{{ f.name }}</call>"), ""),
          { "calls: generic", "why: a call's arguments stand in front of its name" } },
        { "unmarked",
          TURNS(CONTENT CALLS("{{ f.name }} {{ f.arguments | tojson }}\n"), ""),
          { "calls: generic", "why: nothing marks the beginning of a call" } },
        { "endless",
          "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
          { "calls: generic", "why: the template takes too long" } },
        { "refusing",
          "{{ raise_exception('no') }}",
          { "calls: generic", "!think", "!system text", "!user text", "!assistant text" } },
        /* Walks over parts: of a string, letter by letter, none has a type. */
        { "parts alone",
          "{% for m in messages %}{{ m.role | capitalize }}{% if m.content[0].type == 'image' %}:{% else %}: {% endif "
          "%}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}<end_of_utterance>\n"
          "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}",
          { "calls: generic", "why: the template shows no calls of earlier turns", "system text: parts",
            "user text: parts", "assistant text: parts", "end: <end_of_utterance>" } },
        { "a system in parts",
          "{% set s = messages[0].content[0].text + '\n\n' if messages[0].role == 'system' else '' %}"
          "{% for m in messages if m.role != 'system' %}<start_of_turn>{{ m.role }}\n{{ s if loop.first }}"
          "{{ m.content if m.content is string else m.content[0].text }}<end_of_turn>\n{% endfor %}",
          { "system text: parts", "!user text", "!assistant text" } },
        { "no system",
          "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}"
          "{% endfor %}",
          { "system text: dropped", "!user text", "!assistant text" } },
        { "calls without results",
          TOOLS_SHOWN "{% for m in messages if m.role != 'tool' %}<|{{ m.role }}|>" CONTENT CALLS(
                  "<call>{{ f | tojson }}</call>") "<|end|>{% endfor %}",
          { "calls: json", "tool text: dropped" } },
        { "results in parts",
          TOOLS_SHOWN "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'tool' %}{% for p in m.content %}"
                      "{{ p.text }}{% endfor %}{% else %}" CONTENT CALLS(
                              "<call>{{ f | tojson }}</call>") "{% endif %}<|end|>{% endfor %}",
          { "calls: json", "tool text: parts", "!user text" } },
};

#endif
