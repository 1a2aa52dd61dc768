from __future__ import annotations

import time

import pytest

from redraft.errors import TemplateError
from redraft.text import sandbox
from redraft.text.sandbox import SandboxedTemplate

HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "long range": "{% for a in range(10**9) %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling by +": "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling lists": "{% set n = namespace(x=['ab']) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}",
    "doubling namespaces": (
        "{% set n = namespace(x=1) %}{% for i in range(99) %}"
        "{% set n.x = namespace(a=[n.x, n.x]) %}{% endfor %}{{ n.x }}"
    ),
    "doubling blocks": (
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}"
    ),
    "branching macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(200) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "huge product": "{{ 'a' * 10**12 }}",
    "huge list": "{{ [1] * 10**12 }}",
    "huge power": "{{ 9 ** 9 ** 9 }}",
    "wide %": "{{ '%999999999d' % 1 }}",
    "wide % of an argument": "{{ '%*d' % (999999999, 1) }}",
    "wide format": "{{ '{:999999999}'.format(1) }}",
    "wide format of an argument": "{{ '{:{}}'.format(1, 999999999) }}",
    "wide format filter": "{{ '%999999999d' | format(1) }}",
    "wide center": "{{ 'x'.center(10**9) }}",
    "wide center filter": "{{ 'x' | center(10**9) }}",
    "wide ljust": "{{ 'x'.ljust(10**9) }}",
    "wide indent": "{{ 'x' | indent(10**9, true) }}",
    "wide tojson": "{{ [1] | tojson(indent=10**9) }}",
    "replace": "{% set x = 'a' * 10**6 %}{{ x.replace('a', x) }}",
    "replace filter": "{% set x = 'a' * 10**6 %}{{ x | replace('a', x) }}",
    "join": "{% set x = 'a' * 10**6 %}{{ x.join(x) }}",
    "join filter": "{% set x = 'a' * 10**6 %}{{ x | join(x) }}",
    "join of shared parts": "{% set x = 'a' * 10**6 %}{{ [x, x, x, x, x, x, x] | join }}",
    "bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "long output": "{% set x = 'a' * 10**6 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "lorem ipsum": "{{ lipsum(10**6) }}",
    "internals": "{{ ''.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}",
    "mutation": "{{ messages.append(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "undefined": "{{ nothing.at.all }}",
    "wrong type": "{{ 1 + 'a' }}",
    "raise": "{{ raise_exception('no\nmore') }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_and_broken_templates_end_soon_with_one_line(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 20_000)
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 2.0)
    start = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        SandboxedTemplate(source).render({"messages": []})
    assert time.monotonic() - start < 5
    assert "\n" not in str(caught.value)


def test_the_deadline_holds_where_steps_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.05)
    source = "{% set x = 'ab' * 10**5 %}{% for i in range(99999) %}{{ x.count('b') if x.count('a') < 0 }}{% endfor %}"
    with pytest.raises(TemplateError, match="seconds"):
        SandboxedTemplate(source).render({})


@pytest.mark.parametrize("source", ["{% for %}", "{{ 1", "{% unknown %}", "{{ " + "(" * 3000 + " }}", "x" * (1 << 18)])
def test_what_is_no_template_is_refused(source: str) -> None:
    with pytest.raises(TemplateError):
        SandboxedTemplate(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ none ~ missing }}", "a1None"),
        ("{{ {'a': 'é<'} | tojson }}", '{"a": "é<"}'),
        ("{% generation %}x{{ 1 }}{% endgeneration %}", "x1"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}", "a, b"),
        ("{% set n = namespace(i=0) %}{% for m in messages %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}", "2"),
        ("{{ ' a '.strip().upper() + '%s-%03d' % ('x', 7) + '{}'.format(3) }}", "Ax-0073"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('y') | trim }}", "<y>"),
        ("{% macro m(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{% call m('z') %}y{% endcall %}", "<yz>"),
        ("{% set x | upper %}a{% endset %}{{ x }}{% filter upper %}b{% endfilter %}", "AB"),
        ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}", "role=user;content=a;"),
    ],
)
def test_the_dialect_of_chat_templates(source: str, text: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert SandboxedTemplate(source).render({"messages": messages}) == text
