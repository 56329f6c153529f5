"""Chat templates that treat messages as those of well-known model families do."""

from tests.text.tiny_tokenizers import CHAT_TEMPLATE

QWEN3 = (
    "{%- if tools -%}{{- '<|im_start|>system\\nTools:' -}}"
    "{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- set content = message.content -%}"
    "{%- if message.role == 'assistant' and '</think>' in content -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
    "{%- endif -%}"
)
"""Looks into what assistants said, and reads a variable of its own."""

LLAMA3 = (
    "{{- bos_token -}}"
    "{%- if date_string is not defined -%}{%- set date_string = '26 Jul 2024' -%}{%- endif -%}"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n<|eot_id|>' -}}"
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}"
    "{{- message['content'] | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
)
"""Trims."""

PHI3 = (
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' -}}"
    "{%- endfor -%}{{- '<|assistant|>\\n' if add_generation_prompt else '' -}}"
)
"""Puts its control tokens together."""

PARTS = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}"
    "{%- for part in message['content'] -%}{{- part['text'] -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}{%- endfor -%}{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}"
)
"""Writes parts of a content one after another, as that of the demo model."""

CHATML = CHAT_TEMPLATE
