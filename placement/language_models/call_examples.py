"""Example calls of a served language model: a curl command and a Python program."""

import json
import shlex

QUESTION = "Say hello."


def curl_example(base_url: str, name: str) -> str:
    """Return a command for a POSIX shell that streams one answer.

    It reads the token from the variable TOKEN.
    """
    body = {
        "model": name,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
    }
    return (
        'curl -N -H "Authorization: Bearer $TOKEN" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(json.dumps(body))} \\\n"
        f"  {shlex.quote(f'{base_url}/chat/completions')}"
    )


def python_example(base_url: str, name: str) -> str:
    """Return a program for the package ``openai`` that prints one answer."""
    return (
        "import os\n\n"
        "from openai import OpenAI\n\n"
        f"client = OpenAI(base_url={base_url!r}, api_key=os.environ['TOKEN'])\n"
        "stream = client.chat.completions.create(\n"
        f"    model={name!r},\n"
        f"    messages=[{{'role': 'user', 'content': {QUESTION!r}}}],\n"
        "    stream=True,\n"
        ")\n"
        "for event in stream:\n"
        "    if event.choices:\n"
        "        print(event.choices[0].delta.content or '', end='', flush=True)\n"
    )
