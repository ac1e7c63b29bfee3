"""For models that write calls as blocks of code, whatever tags their template asks for: Qwen2.5-Coder.

```json
{
  "name": "get_weather",
  "arguments": {"city": "Paris"}
}
```

No template asks for this, so it is used where it is named. A block that begins so is a call: the grammar lets only the
name of a tool follow.
"""

from __future__ import annotations

from octavo.tools.format import ToolFormat

FENCED_JSON = ToolFormat(
    name="fenced_json",
    opening='```json\n{\n  "name": "',
    before_name="",
    before_arguments='",\n  "arguments": ',
    after_arguments="\n}\n```",
    separator='\n```json\n{\n  "name": "',
    closing="",
    anywhere=True,
)
