"""Drives tandem-http with the official Python clients, as applications do. Run by
tests/integration/test_clients_python.py, which says where the gateway is (TANDEM_URL) and what its model has been
written to say (TANDEM_WANT, JSON). Prints a line for each case; the exit status is 1 when one failed.

Each library has a chat, a stream, a thought, a round of tools (call, result, answer) and a schema."""
import asyncio
import json
import os
import sys
import traceback

URL, WANT = os.environ["TANDEM_URL"], json.loads(os.environ["TANDEM_WANT"])
os.environ.update(OPENAI_API_KEY="not used", ANTHROPIC_API_KEY="not used", OPENAI_BASE_URL=URL + "/v1",
                  ANTHROPIC_BASE_URL=URL, OLLAMA_HOST=URL, OLLAMA_API_BASE=URL, LITELLM_LOCAL_MODEL_COST_MAP="True",
                  OPENAI_AGENTS_DISABLE_TRACING="1", LANGSMITH_TRACING="false", DO_NOT_TRACK="1")
MODEL, QUESTION = "scripted", "Hello there"
ASK = [{"role": "user", "content": QUESTION}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
              "additionalProperties": False}
FUNCTION = {"name": "weather", "description": "The weather in a city", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
RESULT = "Sunny"
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def same(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def person_class():
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int
    return Person


def same_person(got):
    same((got.name, got.age), (WANT["person"]["name"], WANT["person"]["age"]), "schema")


def called(name, arguments):
    arguments = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
    same((name, arguments), ("weather", WANT["arguments"]), "call")


# ---- openai


@case
def openai_chat():
    from openai import OpenAI
    client = OpenAI(max_retries=0)
    message = client.chat.completions.create(model=MODEL, messages=ASK).choices[0].message
    same((message.content, message.reasoning_content), (WANT["text"], WANT["thought"]), "answer and thought")
    text = thought = ""
    for chunk in client.chat.completions.create(model=MODEL, messages=ASK, stream=True):
        delta = chunk.choices[0].delta
        text += delta.content or ""
        thought += getattr(delta, "reasoning_content", None) or ""
    same((text, thought), (WANT["text"], WANT["thought"]), "stream")
    off = client.chat.completions.create(model=MODEL, messages=ASK, reasoning_effort="none").choices[0].message
    same((off.content, getattr(off, "reasoning_content", None)), (WANT["text"], None), "without a thought")
    got = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=person_class())
    same_person(got.choices[0].message.parsed)


@case
def openai_tools():
    from openai import OpenAI
    client = OpenAI(max_retries=0)
    messages = list(ASK)
    strict = [{"type": "function", "function": dict(FUNCTION, strict=True)}]
    message = client.chat.completions.parse(model=MODEL, messages=messages, tools=strict).choices[0].message
    same(len(message.tool_calls), 1, "calls")
    called(message.tool_calls[0].function.name, message.tool_calls[0].function.arguments)
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}]
    end = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    same((end.choices[0].message.content, end.choices[0].finish_reason), (WANT["last"], "stop"), "answer")
    with client.chat.completions.stream(model=MODEL, messages=ASK, tools=TOOLS) as stream:
        final = stream.get_final_completion().choices[0]
    called(final.message.tool_calls[0].function.name, final.message.tool_calls[0].function.arguments)


@case
def openai_responses():
    from openai import OpenAI
    client = OpenAI(max_retries=0)
    got = client.responses.create(model=MODEL, input=QUESTION)
    same(got.output_text, WANT["text"], "answer")
    same([i.content[0].text for i in got.output if i.type == "reasoning"], [WANT["thought"]], "thought")
    with client.responses.stream(model=MODEL, input=QUESTION) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    same(text, WANT["text"], "stream")
    same_person(client.responses.parse(model=MODEL, input=QUESTION, text_format=person_class()).output_parsed)


@case
def openai_responses_tools():
    from openai import OpenAI
    client = OpenAI(max_retries=0)
    tools = [{"type": "function", "strict": True, **FUNCTION}]
    first = client.responses.create(model=MODEL, input=ASK, tools=tools)
    call = next(i for i in first.output if i.type == "function_call")
    called(call.name, call.arguments)
    items = ASK + [i.model_dump(exclude_none=True) for i in first.output] + [
        {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
    same(client.responses.create(model=MODEL, input=items, tools=tools).output_text, WANT["last"], "answer")


# ---- anthropic

THINKS = {"type": "enabled", "budget_tokens": 1024}
ANTHROPIC_TOOLS = [{"name": "weather", "description": "The weather", "input_schema": PARAMETERS}]


@case
def anthropic_chat():
    from anthropic import Anthropic
    client = Anthropic(max_retries=0)
    got = client.messages.create(model=MODEL, max_tokens=2048, messages=ASK)
    same([b.text for b in got.content], [WANT["text"]], "answer")
    got = client.messages.create(model=MODEL, max_tokens=2048, messages=ASK, thinking=THINKS)
    same([getattr(b, b.type) for b in got.content], [WANT["thought"], WANT["text"]], "thought and answer")
    with client.messages.stream(model=MODEL, max_tokens=2048, messages=ASK, thinking=THINKS) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_message()
    same([getattr(b, b.type) for b in final.content], [WANT["thought"], WANT["text"]], "stream")
    same("signature" in kinds and "thinking" in kinds, True, f"events {set(kinds)}")
    again = ASK + [{"role": "assistant", "content": final.content}] + ASK
    same(client.messages.create(model=MODEL, max_tokens=2048, messages=again, thinking=THINKS).stop_reason, "end_turn",
         "thoughts are taken back")
    got = client.messages.parse(model=MODEL, max_tokens=2048, messages=ASK, output_format=person_class())
    same_person(got.parsed_output)
    same(client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens > 3, True, "count_tokens")


@case
def anthropic_tools():
    from anthropic import Anthropic
    client = Anthropic(max_retries=0)
    more = {"model": MODEL, "max_tokens": 2048, "tools": ANTHROPIC_TOOLS}
    first = client.messages.create(messages=ASK, **more)
    same((first.content[-1].type, first.stop_reason), ("tool_use", "tool_use"), "kinds")
    called(first.content[-1].name, first.content[-1].input)
    back = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": [{"type": "text", "text": RESULT}]}
    end = client.messages.create(messages=ASK + [{"role": "assistant", "content": first.content},
                                                 {"role": "user", "content": [back]}], **more)
    same([b.text for b in end.content], [WANT["last"]], "answer")
    with client.messages.stream(messages=ASK, **more) as stream:
        called(stream.get_final_message().content[-1].name, stream.get_final_message().content[-1].input)


# ---- ollama


@case
def ollama_client():
    import ollama
    client = ollama.Client(host=URL)
    got = client.chat(MODEL, ASK).message
    same((got.content, got.thinking), (WANT["text"], WANT["thought"]), "answer and thought")
    parts = list(client.chat(MODEL, ASK, stream=True))
    same(["".join(getattr(p.message, k) or "" for p in parts) for k in ("content", "thinking")],
         [WANT["text"], WANT["thought"]], "stream")
    got = client.chat(MODEL, ASK, think=False).message
    same((got.content, got.thinking or None), (WANT["text"], None), "without a thought")
    person = person_class()
    same_person(person.model_validate_json(client.chat(MODEL, ASK, format=person.model_json_schema()).message.content))

    def weather(city: str) -> str:
        """The weather in a city.

        Args:
          city: its name
        """
        return RESULT
    message = client.chat(MODEL, ASK, tools=[weather]).message
    called(message.tool_calls[0].function.name, message.tool_calls[0].function.arguments)
    messages = ASK + [message, {"role": "tool", "tool_name": "weather", "content": RESULT}]
    same(client.chat(MODEL, messages, tools=[weather]).message.content, WANT["last"], "answer")


# ---- langchain


def langchain_models():
    from langchain_anthropic import ChatAnthropic
    from langchain_ollama import ChatOllama
    from langchain_openai import ChatOpenAI
    return {"openai": (ChatOpenAI(model=MODEL, max_retries=0), {}),
            "responses": (ChatOpenAI(model=MODEL, max_retries=0, use_responses_api=True), {}),
            "anthropic": (ChatAnthropic(model=MODEL, max_retries=0, max_tokens=2048, thinking=THINKS),
                          {"method": "json_schema"}),
            "ollama": (ChatOllama(model=MODEL, base_url=URL, reasoning=True), {})}


def thought_of(message):
    """Where langchain's packages put it: the openai one drops what chat completions say of it."""
    blocks = [b for b in message.content_blocks if b["type"] == "reasoning"]
    return "".join(b.get("reasoning") or "".join(c["text"] for c in b.get("extras", {}).get("content", []))
                   for b in blocks)


@case
def langchain_chat():
    for name, (model, how) in langchain_models().items():
        message = model.invoke(QUESTION)
        same(message.text, WANT["text"], name)
        if name != "openai":
            same(thought_of(message), WANT["thought"], f"{name}: thought")
        same("".join(part.text for part in model.stream(QUESTION)), WANT["text"], f"{name}: stream")
        same_person(model.with_structured_output(person_class(), **how).invoke(QUESTION))


@case
def langchain_agents():
    from langchain.agents import create_agent

    def weather(city: str) -> str:
        """The weather in a city."""
        return RESULT
    for name, (model, _) in langchain_models().items():
        messages = create_agent(model, [weather]).invoke({"messages": ASK})["messages"]
        calls = [c for m in messages for c in getattr(m, "tool_calls", [])]
        same(len(calls), 1, f"{name}: calls")
        called(calls[0]["name"], calls[0]["args"])
        same(messages[-1].text, WANT["last"], f"{name}: answer")


# ---- litellm


@case
def litellm_client():
    import litellm
    litellm.telemetry = False
    for provider in ("openai", "anthropic", "ollama_chat"):
        more = {"model": f"{provider}/{MODEL}", "num_retries": 0,
                "api_base": URL + ("/v1" if provider == "openai" else "")}
        thinks = {"thinking": THINKS, "max_tokens": 2048, "allowed_openai_params": ["thinking"]}
        ask = dict(more, messages=ASK, **(thinks if provider == "anthropic" else {}))
        message = litellm.completion(**ask).choices[0].message
        same((message.content, message.reasoning_content), (WANT["text"], WANT["thought"]), provider)
        parts = [c.choices[0].delta for c in litellm.completion(stream=True, **ask)]
        same(["".join(getattr(p, k, None) or "" for p in parts) for k in ("content", "reasoning_content")],
             [WANT["text"], WANT["thought"]], f"{provider}: stream")
        messages = list(ASK)
        message = litellm.completion(messages=messages, tools=TOOLS, **more).choices[0].message
        called(message.tool_calls[0].function.name, message.tool_calls[0].function.arguments)
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "name": "weather",
                               "content": RESULT}]
        same(litellm.completion(messages=messages, tools=TOOLS, **more).choices[0].message.content, WANT["last"],
             f"{provider}: answer")
        form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True,
                                                       "schema": dict(person_class().model_json_schema(),
                                                                      additionalProperties=False)}}
        text = litellm.completion(messages=ASK, response_format=form, **more).choices[0].message.content
        same(json.loads(text), WANT["person"], f"{provider}: schema")


# ---- pydantic-ai


def pydantic_models():
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    openai = OpenAIProvider(base_url=URL + "/v1", api_key="not used")
    return {"openai": OpenAIChatModel(MODEL, provider=openai),
            "responses": OpenAIResponsesModel(MODEL, provider=openai),
            "anthropic": AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="not used"))}


@case
def pydantic_ai_client():
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.messages import ThinkingPart

    async def streamed(agent):
        async with agent.run_stream(QUESTION) as result:
            return "".join([t async for t in result.stream_text(delta=True)])

    for name, model in pydantic_models().items():
        settings = {"anthropic_thinking": THINKS, "max_tokens": 2048} if name == "anthropic" else {}
        agent = Agent(model, model_settings=settings)
        result = agent.run_sync(QUESTION)
        same(result.output, WANT["text"], name)
        thoughts = [p for m in result.all_messages() for p in m.parts if isinstance(p, ThinkingPart)]
        same("".join(p.content or "".join(p.provider_details["raw_content"]) for p in thoughts), WANT["thought"],
             f"{name}: thought")
        same(asyncio.run(streamed(agent)), WANT["text"], f"{name}: stream")
        if name != "anthropic":
            same_person(Agent(model, output_type=NativeOutput(person_class())).run_sync(QUESTION).output)
        asked = []
        agent = Agent(model)

        @agent.tool_plain
        def weather(city: str) -> str:
            """The weather in a city."""
            asked.append(city)
            return RESULT
        same((agent.run_sync(QUESTION).output, asked), (WANT["last"], [WANT["arguments"]["city"]]), f"{name}: tools")


# ---- openai-agents


@case
def openai_agents_client():
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, \
        set_tracing_disabled
    from openai import AsyncOpenAI
    set_tracing_disabled(True)
    asked = []

    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return RESULT

    async def streamed(agent):
        result = Runner.run_streamed(agent, QUESTION)
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        return text

    async def all_of(kind):
        model = kind(model=MODEL, openai_client=AsyncOpenAI(max_retries=0))
        agent = Agent(name="plain", instructions="Be brief.", model=model)
        same((await Runner.run(agent, QUESTION)).final_output, WANT["text"], "answer")
        same(await streamed(agent), WANT["text"], "stream")
        form = Agent(name="form", model=model, output_type=person_class())
        same_person((await Runner.run(form, QUESTION)).final_output)
        asked.clear()
        with_tools = Agent(name="tools", model=model, tools=[weather])
        same((await Runner.run(with_tools, QUESTION)).final_output, WANT["last"], "tools")
        same(asked, [WANT["arguments"]["city"]], "calls")

    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        asyncio.run(all_of(kind))


def main():
    failed = 0
    for name in sys.argv[1:] or CASES:
        try:
            CASES[name]()
            print("ok  ", name, flush=True)
        except Exception:
            failed = 1
            print("FAIL", name, traceback.format_exc()[-3000:], flush=True)
    return failed


sys.exit(main())
