"""The engine for scripts: give prompts, get finished answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self, SupportsIndex, TypeVar, cast

from octavo.chat.format import ChatParsers
from octavo.chat.plan import ChatPlan
from octavo.chat.preparation import ChatPreparer, ChatQuestion
from octavo.config import DEFAULT_MODEL, EngineArgs, EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.choices import best_first, fan_out
from octavo.engine.engine import Engine
from octavo.engine.input import require_list
from octavo.engine.priority import checked_priority
from octavo.engine.progress import BatchProgress
from octavo.engine.thread import EngineThread
from octavo.errors import ConfigError, EngineDeadError, InvalidValueError, RequestError, ShuttingDownError
from octavo.request import CompletionOutput, OutputDelta, Request, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.step import TokenLogprobs
from octavo.tools.choice import choice_of, tools_in

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]
Input = TypeVar("Input")

_INTERRUPT_CHECK_S = 0.2


class LLM:
    """A model, loaded and ready. Other keyword arguments than the parsers are the fields of `EngineArgs`.

    `tool_call_parser` and `reasoning_parser` name how the model writes calls and marks its reasoning, for `chat`; None:
    as the chat template says. Raises `ConfigError` or `ModelError`.

    May be used from several threads at once: their requests share the batch. Ctrl-C aborts the call it interrupts and
    leaves the engine usable. `close()`, or the end of a `with` block, gives the memory back.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        **engine_args: Any,
    ) -> None:
        parsers = ChatParsers(tool_call_parser, reasoning_parser)
        self._serve(build_engine(_engine_args(model, engine_args)), parsers)

    @classmethod
    def from_engine(
        cls, engine: Engine, *, tool_call_parser: str | None = None, reasoning_parser: str | None = None
    ) -> Self:
        """An LLM over an engine that was built elsewhere."""
        parsers = ChatParsers(tool_call_parser, reasoning_parser)
        llm = cls.__new__(cls)
        llm._serve(engine, parsers)
        return llm

    def _serve(self, engine: Engine, parsers: ChatParsers) -> None:
        self._engine = engine
        self._parsers = parsers
        self._collectors: dict[str, _Collector] = {}
        self._thread = EngineThread(engine.core, self._deliver)
        self._closed = False
        self._thread.start()

    @property
    def config(self) -> EngineConfig:
        return self._engine.config

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt; the results are in the order of the prompts.

        A prompt is text, token ids, or a mapping with `prompt` or `prompt_token_ids`. `sampling_params` are one for all
        or one each, and so is `priority`: the lower, the sooner (-100 to 100, 0 if not given). `use_tqdm` shows a
        progress bar; None: for batches, when stderr is a terminal. Raises `RequestError`, naming the prompt's index,
        before anything runs; `EngineError` if a step fails.
        """
        inputs = _as_prompts(prompts)
        return self._run(inputs, sampling_params, self._request_from_prompt, "prompts", use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        priority: int | Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several.

        Each answer has, beside its `text`, its `reasoning`, `content` and `tool_calls`, read and enforced as the server
        does. `tools` and `tool_choice` are OpenAI's; `template_kwargs` go to the chat template.
        """
        offered = tools_in(tools or ())
        choice = choice_of(tool_choice, offered, several=True)
        source = self._engine.tokenizer.chat_template if chat_template is None else chat_template
        preparer = ChatPreparer(self._engine.input, self._engine.tokenizer, self._parsers.format_under(source))
        plans: dict[str, ChatPlan] = {}

        def request(conversation: Sequence[Message], sampling: SamplingParams) -> Request:
            question = ChatQuestion(
                conversation,
                tools=(tools or ()) if tool_choice != "none" else (),
                choice=choice,
                structured=sampling.structured_outputs,
                form_param="" if sampling.structured_outputs is None else sampling.structured_outputs.param,
                template_kwargs=template_kwargs,
                chat_template=chat_template,
                continue_final_message=continue_final_message,
            )
            chat = preparer.prepare(question, sampling)
            plans[chat.request.request_id] = chat.plan
            return chat.request

        outputs = self._run(_as_conversations(messages), sampling_params, request, "messages", use_tqdm, priority)
        return [_told_apart(output, plans[output.request_id]) for output in outputs]

    def get_default_sampling_params(self) -> SamplingParams:
        """What holds for prompts without any: the defaults of the model's generation config."""
        return SamplingParams(**self.config.generation_defaults.sampling)

    def close(self) -> None:
        """Aborts what runs, stops the engine thread and frees weights and KV cache. May be called twice."""
        if not self._closed:
            self._closed = True
            self._thread.stop()
            self._engine.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _request_from_prompt(self, prompt: Prompt, sampling: SamplingParams) -> Request:
        if isinstance(prompt, Mapping):
            prompt = _prompt_in(prompt)
        return self._engine.input.from_prompt(prompt, sampling)

    def _run(
        self,
        inputs: Sequence[Input],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        make_request: Callable[[Input, SamplingParams], Request],
        param: str,
        use_tqdm: bool | None,
        priority: int | Sequence[int] | None,
    ) -> list[RequestOutput]:
        samplings = _one_each(
            sampling_params if sampling_params is not None else self.get_default_sampling_params(), len(inputs), param
        )
        priorities = _priorities(priority, len(inputs), param)

        def prioritised(index: int) -> Request:
            request = make_request(inputs[index], samplings[index])
            return replace(request, priority=checked_priority(priorities[index], self.config.scheduling))

        requests = [_at_index(prioritised, param, index) for index in range(len(inputs))]
        show = len(inputs) > 1 and sys.stderr.isatty() if use_tqdm is None else use_tqdm
        groups = [fan_out(request) for request in requests]
        with BatchProgress(sum(map(len, groups)), show) as progress:
            answers = self._complete([choice for group in groups for choice in group], progress)
        return [
            _output(request, [answers[choice.request_id] for choice in group])
            for request, group in zip(requests, groups, strict=True)
        ]

    def _complete(self, requests: list[Request], progress: BatchProgress) -> dict[str, _Collector]:
        """Runs the requests to their ends, by request id; whatever interrupts that aborts them."""
        self._check_open()
        ended: SimpleQueue[_Collector] = SimpleQueue()
        collectors = {request.request_id: _Collector(ended) for request in requests}
        self._collectors.update(collectors)
        try:
            self._thread.submit(requests)
            for _ in requests:
                last = _next(ended).last
                progress.advance(last.num_prompt_tokens - last.num_cached_tokens, last.num_output_tokens)
        except BaseException:
            self._thread.abort(list(collectors))
            raise
        finally:
            for request_id in collectors:
                del self._collectors[request_id]
        return collectors

    def _check_open(self) -> None:
        if self._closed:
            raise ShuttingDownError("this LLM has been closed")
        if not self._thread.healthy:
            raise EngineDeadError("the backend is broken and the engine has stopped")

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        """On the engine thread: adds each delta to its request's collector, if that is still wanted."""
        for delta in deltas:
            collector = self._collectors.get(delta.request_id)
            if collector is not None:
                collector.take(delta)


class _Collector:
    """Gathers one answer's deltas on the engine thread and reports to `ended` once it has the last."""

    __slots__ = ("_ended", "_last", "_logprobs", "_texts", "_token_ids", "prompt_logprobs")

    def __init__(self, ended: SimpleQueue[_Collector]) -> None:
        self._ended = ended
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self._last: OutputDelta | None = None

    def take(self, delta: OutputDelta) -> None:
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        if delta.logprobs:
            self._logprobs += [placed.token for placed in delta.logprobs]
        if delta.prompt_logprobs:
            self.prompt_logprobs += delta.prompt_logprobs
        if delta.finish_reason is not None:
            self._last = delta
            self._ended.put(self)

    @property
    def last(self) -> OutputDelta:
        """The last delta, which has come. Raises the error the answer ended with, if any."""
        assert self._last is not None
        if self._last.error is not None:
            raise self._last.error
        return self._last

    def completion(self, index: int) -> CompletionOutput:
        last = self.last
        assert last.finish_reason is not None
        return CompletionOutput(
            index,
            "".join(self._texts),
            tuple(self._token_ids),
            last.finish_reason,
            last.stop_reason,
            tuple(self._logprobs),
            sum(token.logprob for token in self._logprobs) if self._logprobs else None,
        )


def _output(request: Request, answers: Sequence[_Collector]) -> RequestOutput:
    """A finished request; what was cached and the times are those of its first answer."""
    return RequestOutput(
        request.request_id,
        request.prompt,
        request.prompt_token_ids,
        _completions(request.sampling, answers),
        answers[0].last.num_cached_tokens,
        answers[0].last.times,
        (None, *answers[0].prompt_logprobs) if request.sampling.prompt_logprobs is not None else (),
    )


def _told_apart(output: RequestOutput, plan: ChatPlan) -> RequestOutput:
    """With the parts of each answer."""
    return replace(output, outputs=tuple(_with_parts(completion, plan) for completion in output.outputs))


def _with_parts(completion: CompletionOutput, plan: ChatPlan) -> CompletionOutput:
    parts = plan.parts_of(completion.text)
    return replace(
        completion,
        reasoning=parts.reasoning or None,
        content=None if parts.tool_calls and not parts.content else parts.content,
        tool_calls=parts.tool_calls,
    )


def _completions(sampling: SamplingParams, answers: Sequence[_Collector]) -> tuple[CompletionOutput, ...]:
    """The answers that were asked for."""
    if sampling.use_beam_search:
        return answers[0].last.completions
    completions = [answer.completion(index) for index, answer in enumerate(answers)]
    if sampling.keeps_best:
        ranking = best_first([completion.logprobs for completion in completions])
        completions = [replace(completions[place], index=index) for index, place in enumerate(ranking[: sampling.n])]
    return tuple(completions)


def _next(ended: SimpleQueue[_Collector]) -> _Collector:
    """The next request that has ended.

    Wakes now and then: a Ctrl-C that comes just before the wait begins would otherwise be noticed at its end only.
    """
    while True:
        with suppress(Empty):
            return ended.get(timeout=_INTERRUPT_CHECK_S)


def _engine_args(model: str | Path, engine_args: dict[str, Any]) -> EngineArgs:
    known = [field.name for field in fields(EngineArgs)]
    for name in engine_args:
        if name not in known:
            raise ConfigError(f"LLM has no argument {name!r}; there are: {', '.join(known)}")
    if not isinstance(model, (str, Path)):
        raise ConfigError(f"model is {model!r}; it must be a path or the name of a model")
    return EngineArgs(model=str(model), **engine_args)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A single prompt, text or mapping or token ids, becomes a list of one."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    require_list(prompts, "prompts", "text, a list of token ids, or a list of such")
    first = next(iter(prompts), None)
    if isinstance(first, SupportsIndex) and not isinstance(first, Sized):  # arrays of one number are both
        return [cast(Prompt, prompts)]
    return cast(Sequence[Prompt], prompts)


def _prompt_in(prompt: Mapping[str, Any]) -> str | Sequence[int]:
    match dict(prompt):
        case {"prompt_token_ids": token_ids, **others} if not others or set(others) == {"prompt"}:
            require_list(token_ids, "prompt_token_ids", "a list of token ids")
            return cast(Sequence[int], token_ids)
        case {"prompt": str(text), **others} if not others:
            return text
    raise InvalidValueError(
        f"a prompt mapping has the keys {sorted(prompt)}; it must have prompt_token_ids or prompt", param="prompt"
    )


def _as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> Sequence[Sequence[Message]]:
    require_list(messages, "messages", "a list of messages, or a list of such lists")
    if len(messages) > 0 and isinstance(messages[0], Mapping):
        return [cast(Sequence[Message], messages)]
    return cast(Sequence[Sequence[Message]], messages)


def _one_each(
    sampling_params: SamplingParams | Sequence[SamplingParams], count: int, param: str
) -> Sequence[SamplingParams]:
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    require_list(sampling_params, "sampling_params", "a SamplingParams or a list of them")
    for index, given in enumerate(sampling_params):
        if not isinstance(given, SamplingParams):
            raise InvalidValueError(
                f"sampling_params[{index}] is {given!r}; it must be a SamplingParams", param="sampling_params"
            )
    if len(sampling_params) != count:
        raise InvalidValueError(
            f"{len(sampling_params)} sampling_params were given for {count} {param}; give one, or one each",
            param="sampling_params",
        )
    return sampling_params


def _priorities(priority: int | Sequence[int] | None, count: int, param: str) -> Sequence[int]:
    if priority is None or isinstance(priority, int):
        return [priority or 0] * count
    require_list(priority, "priority", "an integer or a list of integers")
    if len(priority) != count:
        raise InvalidValueError(
            f"{len(priority)} priorities were given for {count} {param}; give one, or one each", param="priority"
        )
    return priority


def _at_index(make_request: Callable[[int], Request], param: str, index: int) -> Request:
    """Makes one request of a batch; an error says which it was."""
    try:
        return make_request(index)
    except RequestError as error:
        raise type(error)(f"{param}[{index}]: {error}", param=error.param, code=error.code) from error
