"""What a chat request makes of its answer: the form it must have, and how its text is to be read."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.chat.reader import AnswerParts, ChoiceReader, put_together
from octavo.grammar.definition import form_of
from octavo.grammar.forms import Chain, Form, FreeUntil, Marker, OneOf, Regex
from octavo.reasoning.markers import ReasoningMarkers, ReasoningState
from octavo.reasoning.passage import ReasoningSpan
from octavo.reasoning.splitter import ReasoningSplitter
from octavo.structured_outputs import StructuredOutputsParams
from octavo.tools.call_forms import answer_form
from octavo.tools.format import ToolFormat
from octavo.tools.reader import ToolCallReader
from octavo.tools.tool import ToolChoice


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """`reasoning` is how things stand at the end of the prompt; None if the model has no markers of reasoning."""

    choice: ToolChoice | None
    tool_format: ToolFormat
    structured: StructuredOutputsParams | None
    markers: ReasoningMarkers | None
    state: ReasoningState
    shows_reasoning: bool

    @property
    def form(self) -> Form | None:
        """The form of the whole answer, reasoning first; None if it may be any text."""
        form = None if self.structured is None else form_of(self.structured)
        if self.choice is not None:
            form = answer_form(self.tool_format, self.choice, form)
        return form if form is None or self.markers is None else _after_reasoning(form, self.markers, self.state)

    @property
    def has_parts(self) -> bool:
        """Whether the text has to be read for its parts."""
        return self.choice is not None or self.reasons

    @property
    def reasons(self) -> bool:
        """Whether the answer may begin with reasoning."""
        return self.markers is not None and (self.state.begun or self.state.may_begin)

    @property
    def reasoning(self) -> ReasoningSpan | None:
        """Where an answer's reasoning is, if it may have any."""
        return ReasoningSpan(self.markers, self.state) if self.markers is not None and self.reasons else None

    @property
    def marked_by(self) -> tuple[str, ...]:
        """The texts that tell the parts of the answer."""
        reasoning = (self.markers.start, self.markers.end) if self.markers is not None and self.reasons else ()
        calls = (self.tool_format.opening, self.tool_format.before_arguments) if self.choice is not None else ()
        return reasoning + calls

    def reader(self) -> ChoiceReader:
        """A reader of one answer."""
        splitter = ReasoningSplitter(self.markers, self.state) if self.markers is not None and self.reasons else None
        calls = None if self.choice is None else ToolCallReader(self.tool_format, required=self.choice.required)
        return ChoiceReader(splitter, calls, shows_reasoning=self.shows_reasoning)

    def parts_of(self, text: str) -> AnswerParts:
        """The parts of a whole answer."""
        reader = self.reader()
        return put_together([*reader.append(text), *reader.flush()])


def _after_reasoning(form: Form, markers: ReasoningMarkers, state: ReasoningState) -> Form:
    """The form, behind what reasoning the answer may begin with."""
    ended = Chain((FreeUntil(markers.end), Regex(r"\n{0,2}"), form))
    if state.begun:
        return ended
    return OneOf((Chain((Marker(markers.start), ended)), form)) if state.may_begin else form
