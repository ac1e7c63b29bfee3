"""Which tokens end an answer."""

from __future__ import annotations

from octavo.tokenizer.vocabulary import TokenKind, Vocabulary

# What the model families call the end of a turn or of a text. A file names one EOS; chat models end with any of these.
END_TOKENS = (
    "</s>",
    "<EOT>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<\N{FULLWIDTH VERTICAL LINE}end\u2581of\u2581sentence\N{FULLWIDTH VERTICAL LINE}>",
)


def end_token_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """EOS, EOT and EOM as the file names them, and the well-known end tokens among the control tokens.

    Control tokens only: to Gemma, for one, `</s>` is a tag of HTML.
    """
    named = {vocabulary.special_ids[name] for name in ("eos", "eot", "eom") if name in vocabulary.special_ids}
    known = {i for i in vocabulary.ids(TokenKind.CONTROL) if vocabulary.tokens[i] in END_TOKENS}
    return frozenset(named | known)
