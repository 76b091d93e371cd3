#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes cases.json: templates and Jinja's output for them in the environment that transformers gives to chat templates.

    python3 -m venv v && v/bin/pip install jinja2==3.1.6 && v/bin/python tests/data/jinja/make_cases.py

A case whose template raises an error has "error" instead of "text". Expectations of the interpreter in jinja/ come from
here, never from the interpreter."""
import json
import os
from datetime import datetime

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = "2026-03-04T05:06:07"
VARIABLES = {
    "text": "Hello, World",
    "blanks": "  a\tb \n",
    "many": "a,b,,c",
    "uni": "Grüße, 世界! ß Éa",
    "lines": "one\ntwo\r\n\nfour",
    "html": "<a href=\"x\">'&'</a>",
    "i": 7,
    "neg": -7,
    "f": 2.5,
    "big": 1e20,
    "small": 0.00001,
    "yes": True,
    "no": False,
    "nothing": None,
    "numbers": [3, 1, 2, 3],
    "words": ["b", "A", "c", "B"],
    "empty": [],
    "data": {"b": 1, "a": [1, "x", None], "C": {"d": True}},
    "people": [
        {"name": "Ann", "age": 30, "town": {"name": "Rome"}},
        {"name": "bob", "age": 25},
        {"name": "Cy", "age": 30, "town": {"name": "Oslo"}},
    ],
    "nested": [[1, 2], [3], []],
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3, 7.5 % 2, -7.5 // 2
2 ** 3 ** 2
-2 ** 2
2 ** -1
1 / 4, 1e3, 1.0, 100000.0 * 1e12, 1e16, 1e-4, 1e-5, 123456789.123
0x1F + 0b11 + 0o17 + 1_000
1.5e3, 1E+2, 1.e3
.5
i / 0
i // 0
i % 0
f, big, small, 3.0, 0.1 + 0.2, 1/3
true, True, false, none, None
nothing, missing, yes, no
[1, 'a', "it's", none, 2.0, [true]], ('x',), (1, 2), {'a': 1, 2: 'b'}
"a" ~ 1 ~ none ~ 2.5 ~ true ~ [1]
"a" + "b" "c"
"a" + 1
1 + "a"
"ab" * 3, 3 * "ab", "ab" * 0, [1] * 2
[1] + [2], (1,) + (2,)
[1] + (2,)
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, true == 1, "a" < "b", [1, 2] < [1, 3]
1 < "a"
"a" == 1, none == none, [1] == [1], [1] == (1,), {"a": 1} == {"a": 1.0}
1 in [1, 2], "b" in "abc", "x" not in "abc", "a" in data, 5 in range(3, 9), 3 not in numbers
1 in "abc"
1 in none
"a" in missing
not 1, not "", not [], not not 5
1 and 2, 0 and 2, 1 or 2, 0 or "x", none or missing
"y" if i > 3 else "n", "y" if i > 9 else "n", ("y" if no)
missing.attribute
missing["x"]
missing + 1
nothing.x, nothing["x"]
nothing.x.y
data.b, data["b"], data.missing, data["missing"], data.a[1], data["C"]["d"]
data.items, text.nosuch
data.missing.deeper
text[0], text[-1], text[1:4], text[:-2], text[::2], text[::-1], text[10:2], text[-3:], text[100:], text[100]
uni[0:5], uni[-4:], uni[3], uni|length
numbers[1:], numbers[::-1], numbers[-2:], numbers[5], numbers[1:3:2]
numbers["x"], numbers[nothing]
text["upper"](), text.upper(), text.upper
"%s is %d, %05.1f|%-5s|%5s|%x|%X|%o|%e|%g|%%|%r|%+d|% d|%#x" % ("a", 3, 2.345, "l", "r", 255, 255, 8, 12345.678, 0.0001, "q'", 5, 5, 255)
"%(a)s-%(b)d" % {"a": 1, "b": 2}
"%s" % [1], "%s" % none, "%d" % 3.9
"%s %s" % "a"
"%d" % "a"
"%s" % (1, 2)
"%c" % "x", "%3c|" % "y"
"{} {1}".format(1, 2)
"{0} {1} {0}".format("a", "b")
"{} {}".format("a", 1), "{x} {y[0]} {y[1]}".format(x=1, y=[2, 3]), "{:>5}|{:<5}|{:^5}|{:*^7}".format("a", "b", "c", "d")
"{:d} {:05d} {:+} {:,} {:.2f} {:x} {:#x} {:e} {:%} {:b} {:g} {:10.3f}|".format(5, 42, 7, 1234567, 3.14159, 255, 255, 1234.5, 0.25, 5, 1e10, 2.5)
"{{}} {!r} {!s}".format("a", "b"), "{:{}}|".format("x", 4)
"{".format(1)
"{x}".format(1)
text.upper(), text.lower(), text.title(), "hELLO wORLD x1y".title(), "hello".capitalize(), "HELLO".capitalize(), "aB".swapcase()
blanks.strip() ~ "|" ~ blanks.lstrip() ~ "|" ~ blanks.rstrip() ~ "|", "xxaxx".strip("x"), "abcba".strip("ab"), "abc".lstrip("ab"), "abc".rstrip("bc")
many.split(","), "a b  c ".split(), "a b c".split(" ", 1), "a b  c ".split(none, 1), "".split(), "".split(",")
"abc".split("")
many.rsplit(",", 1), "a b c".rsplit(none, 1), "a  b c ".rsplit(), "a,b".rsplit(";")
lines.splitlines(), lines.splitlines(true), "a\n".splitlines()
text.startswith("He"), text.startswith(("x", "H")), text.endswith("ld"), text.startswith("W", 7), text.endswith("lo", 0, 5)
text.startswith(1)
text.replace("l", "L"), text.replace("l", "L", 1), text.replace("", "-"), text.replace("x", "y"), "aaa".replace("aa", "b")
text.find("o"), text.find("o", 5), text.rfind("o"), text.find("zz"), text.index("W"), text.count("l"), text.count(""), uni.find("世")
text.index("zz")
"-".join(["a", "b"]), ",".join("abc"), "".join([])
",".join([1, 2])
"a-b-c".partition("-"), "a-b-c".rpartition("-"), "abc".partition("-"), "abc".rpartition("-")
"abc".removeprefix("a"), "abc".removesuffix("c"), "abc".removeprefix("x")
"5".zfill(3), "-5".zfill(4), "a".ljust(3) ~ "|", "a".rjust(3), "a".center(4) ~ "|", "ab".center(5, "*"), "abc".center(2)
"abc".isalpha(), "a1".isalpha(), "12".isdigit(), "a1".isalnum(), "  ".isspace(), "".isalpha(), "AB".isupper(), "Ab".islower(), "ab1".islower(), "12".isdecimal(), "½".isnumeric(), "Ab Cd".istitle(), "é".isascii()
"a\tb".expandtabs(4)
data.get("b"), data.get("zz"), data.get("zz", 5)
data.get(b=1)
data.keys()|list, data.values()|list, data.items()|list, data.keys(), data.items()
data.pop("b")
numbers.append(1)
numbers.append, numbers.nosuch
numbers.index(2), numbers.count(3), [1, 2].copy()
numbers.index(9)
text is defined, missing is defined, missing is undefined, nothing is none, i is number, f is number, yes is number, text is number
i is integer, yes is integer, f is float, i is float, yes is boolean, no is false, yes is true, 1 is true
text is string, numbers is sequence, data is sequence, text is sequence, i is sequence, missing is sequence, data is mapping, numbers is mapping
numbers is iterable, text is iterable, i is iterable, missing is iterable, none is iterable
3 is odd, 4 is odd, 4 is even, 9 is divisibleby 3, 9 is divisibleby(2), "abc" is lower, "ABC" is upper, "Abc" is lower
3 is eq 3, 3 is ne 4, 3 is gt 2, 3 is ge 3, 3 is lt 2, 3 is le 3, 3 is greaterthan(2), 3 is lessthan 5, "a" is in ["a"], 3 is sameas 3, none is sameas none
range is callable, text is callable, text.upper is callable, namespace is callable
"upper" is filter, "nope" is filter, "odd" is test
3 is not odd, missing is not defined, 1 is not none and 2 is odd
text is nosuch
text|upper, text|lower, text|title, "a-b (c) <d x1y".title(), "a-b (c) <d x1y"|title, "hELLO"|capitalize, uni|upper, uni|lower, "ΑΣ ΣΑ"|lower
blanks|trim, "xxaxx"|trim("x"), 5|trim, none|trim, missing|trim
text|length, numbers|length, data|length, missing|length, text|count
5|length
none|length
numbers|first, numbers|last, empty|first, empty|last, text|first, text|last, missing|first
numbers|join, numbers|join(", "), people|join(",", attribute="name"), "abc"|join("-"), missing|join("x"), [none, 1.5]|join("|")
none|join
numbers|sort, numbers|sort(reverse=true), words|sort, words|sort(case_sensitive=true), people|sort(attribute="age,name")|map(attribute="name")|list, words|sort(true)
[1, "a"]|sort
numbers|unique|list, words|unique|list, words|unique(true)|list, people|unique(attribute="age")|map(attribute="name")|list
numbers|reverse|list, text|reverse, data|list, "abc"|list
numbers|min, numbers|max, words|min, words|max, empty|min, people|max(attribute="age"), words|max(case_sensitive=true)
numbers|sum, people|sum(attribute="age"), empty|sum, numbers|sum(start=10), [[1], [2]]|sum(start=[])
numbers|map("string")|list, words|map("upper")|join, people|map(attribute="name")|list, people|map(attribute="town.name", default="?")|list, people|map(attribute="town")|list
people|map(attribute="town.name")|list
numbers|select("odd")|list, numbers|reject("odd")|list, numbers|select("gt", 1)|list, [0, 1, "", "a"]|select|list, [0, 1]|reject|list, numbers|select("==", 3)|list
people|selectattr("age", "equalto", 30)|map(attribute="name")|list, people|rejectattr("town")|map(attribute="name")|list, people|selectattr("town")|list|length, people|selectattr("town", "defined")|list|length, people|selectattr("name", "in", ["bob"])|list
people|groupby("age")|list|length, people|groupby("age")|map("first")|list
numbers|batch(2)|list, numbers|batch(3, "x")|list, numbers|slice(3)|list, numbers|slice(3, "x")|list
numbers|map("string"), numbers|select("odd")|length
numbers|select
missing|map("upper")|list, none|map("upper")|list, none|selectattr("x")|list
data|dictsort, data|dictsort(true), {"a": 2, "b": 1}|dictsort(by="value"), {"a": 2, "b": 1}|dictsort(reverse=true), data|items|list
missing|items|list
missing|dictsort
numbers|items
text|default("x"), missing|default("x"), missing|default, nothing|default("x"), nothing|default("x", true), ""|default("x", boolean=true), missing|d("y")
"3"|int, "3.7"|int, "x"|int, "x"|int(5), 3.9|int, -3.9|int, "0x1A"|int(base=16), " 12 "|int, none|int, "1_000"|int, true|int, [1]|int("?")
"3.5"|float, "x"|float, "x"|float(1.5), 3|float, " 1e3 "|float, "inf"|float, none|float, "0x10"|float
2.5|round, 3.5|round, 2.567|round(2), 2.1|round(0, "ceil"), 2.9|round(0, "floor"), 1234|round(-2), 7|round, 2.675|round(2), -2.5|round, 1.05|round(1)
-5|abs, (-5)|abs, -2.5|abs
5|string + "a", none|string, missing|string, [1]|string
"a"|abs
text|replace("l", "L"), text|replace("l", "L", 1), 121|replace(1, 3)
html|e, html|escape, html|safe, ("<"|safe) + "<", "<" + ("<"|safe), "<" ~ ("<"|safe), ("%s"|safe) % "<", ("{}"|safe).format("<"), ("%d"|safe) % 3, ("<"|safe)|e, html|forceescape, ("a"|safe)|upper is escaped
lines|indent, lines|indent(2), lines|indent(2, true), lines|indent(2, true, true), lines|indent("> "), "a"|indent
"one two three four"|truncate(10), "one two three four"|truncate(10, true), "one two"|truncate(255), "one two three four"|truncate(10, false, "…", 0)
"abc"|center(9) ~ "|", "one two-three"|wordcount, "%s-%s"|format("a", 2), "%(x)s"|format(x=3), "a b/ü&"|urlencode, {"a b": "c/d", "x": 1}|urlencode
[1]|urlencode
data[1:]
0 ** -1
(2.5|e)|list, text|sort(attribute="name")|length
text|attr("upper"), data|attr("b"), data|attr("items") is callable
data|tojson, numbers|tojson, text|tojson, uni|tojson, nothing|tojson, 1.0|tojson, 1e20|tojson, html|tojson, [true, none]|tojson, "\u0001\u007f\b\f\t\"\\/"|tojson
data|tojson(indent=2), empty|tojson(indent=2), {}|tojson(indent=4), data|tojson(separators=(",", ":")), data|tojson(sort_keys=true), uni|tojson(ensure_ascii=true), "😀"|tojson(ensure_ascii=true), {1: 2, none: 3, true: 4, 1.5: 5}|tojson, (1, 2)|tojson, data|tojson(indent="--"), data|tojson(indent=2, separators=(",", ":")), [[], {}, [1]]|tojson(indent=1)
missing|tojson
range(3)|tojson
data.items()|tojson
numbers|map("string")|tojson
numbers|map("string")|list|tojson
{(1, 2): 3}|tojson
text|nosuch
range(3)|list, range(1, 4)|list, range(5, 0, -2)|list, range(3), range(1, 9, 2), range(0)|list, range(4)[1], range(10)[2:5]|list, range(3)|length
range(1000000)
range(1, 2, 0)
dict(a=1, b=2), dict({"x": 1}, y=2), dict([["k", "v"]])
namespace(a=1).a, namespace({"b": 2}).b, namespace().x, namespace(a=1)
joiner("|")() ~ "x"
raise_exception("stop here")
strftime_now("%Y-%m-%d %H:%M:%S %d %b %B %A %a %j %y %p %I %f %z %Z %% %-d %-m %e")
"a\n\t\\\"\'\x41\u00e9\101\q"
'it''s'
{"a": 1, "b": [1, {"c": (1, 2)}]}["b"][1].c[0]
{"a": 1,}, [1,], (1,), (), {}
[1, 2][0], (1, 2)[1], {"x": 2}.x, "abc"[1], [[1, 2], [3]][0][1], [{"x": 1}][0].x, "a,b".split(",")[1]
(1, 2)|length, ((1, 2), 3)
text.upper().lower()[:3]|upper|length
text|upper|lower + "x"
-i|abs, -f
+i, - -i
"a" if missing else "b"
missing == missing, missing == none, missing != 1
missing < 1
missing()
text()
none()
data.x.y|default("deep")
(data.x).y is defined
data["x"]["y"] is defined
1 if true else 2 if false else 3
[x for x in numbers]
lambda
1 +
(1
"abc
a b
text.
numbers[
{"a" 1}
{{ 1 }}
10000000000 * 1000
"é" < "z", "Z" < "a", "世" > "z"
1.0|int, 1e3|int, 5.0 // 2, 7 / 2, 6 / 2, 2 ** 0.5, 10 % 3.5
"abc" is string and "abc" in ["abc"]
1 == 1 and not 2 == 3 or false
not "a" in "abc", not ("a" not in "abc")
"a" ~ "b" * 2 ~ 1 + 2
1 ~ 2 + 3
[1, 2, 3] | first + 1
{"role": "user"}.role, {"items": 5}.items is callable, {"items": 5}["items"]
"x".__class__, data.__class__
loop
caller
"abc"|batch(2)|list
"a b c"|replace(" ", "")|upper|list|join("+")
people|map(attribute="name")|join(", ")
people|map("attr", "x")|list
people[0].town.name, people[1].town.name
numbers|list is sameas numbers
"\x00"|length, "a\0b"|length
"1.2.3".split(".")|map("int")|list
data|length > 2 and data.a|length == 3
"{:>{w}}".format("x", w=3)
"a".join(data)
data|first, data|list|last, data|join(",")
text|upper if text else "none"
true + true, true * 3, -true, true / 2
"%s" % true, "%d" % true, "%5.2f|" % 3
"%-10s|%+.1e" % ("ab", 12345.6789)
[1, [2, [3]]]|string
"'" ~ "\"", ["'", '"', "'\""], ["\n", "\\", "\t", "é", "\x7f", "\u200b"]
1e100, 1.7976931348623157e308, 5e-324, 123456789012345680.0, 0.1, 1e22, 1e15, 12345678901234567.0
0|filesizeformat, 1|filesizeformat, 1.5|filesizeformat, 999|filesizeformat, 1000|filesizeformat, -5|filesizeformat
1023|filesizeformat(true), 1024|filesizeformat(true), 1536|filesizeformat(binary=true), 1000000|filesizeformat(true)
13000|filesizeformat, 4100000|filesizeformat, 102000000|filesizeformat, 1e12|filesizeformat, 3e27|filesizeformat, 1e30|filesizeformat
"300"|filesizeformat, " 3e6 "|filesizeformat, true|filesizeformat, 0.5|filesizeformat, -0.5|filesizeformat
999950|filesizeformat, 999949|filesizeformat, 1e24|filesizeformat(true), 5e27|filesizeformat(true)
text|filesizeformat
missing|filesizeformat
nothing|filesizeformat
{"class": "my list", "missing": none, "id": "list-" ~ i}|xmlattr
{"a": html, "b": html|safe, "c": 1, "d": [1, "x"], "e": missing, "f": true}|xmlattr
{"a": 1, "b": 2}|xmlattr(false) ~ "|" ~ {"a": none}|xmlattr ~ "|" ~ {}|xmlattr(autospace=true)
{html|replace("/", "")|replace(" ", "")|replace("=", "")|replace(">", ""): 1}|xmlattr
{"a b": 1}|xmlattr
{"a=b": 1}|xmlattr
{"a>": 1}|xmlattr
{"a/": 1}|xmlattr
{"a\n": 1}|xmlattr
{1: 1}|xmlattr
numbers|xmlattr
missing|xmlattr
"""

TEMPLATES = [
    "a{# comment #}b{#- c -#} d",
    "a\n{# comment #}\nb",
    "  {% if yes %}\n  x\n  {% endif %}\ny\n",
    "{% if yes -%}\n  x\n  {%- endif %}\ny",
    "{%- if yes +%}\n x {%+ endif %}\n",
    "  {%+ if yes %}x{% endif %}\n",
    "  {{ i }}\n  {{- i }}\n  {{ i -}}\n  z\n\n",
    "x {%- if yes %} y {%- endif %} z",
    "line\n   \t{% set x = 1 %}   \nnext {{ x }}",
    "a {% set x = 1 %}\nb",
    "{% raw %}{{ x }} {% if %}{% endraw %}!",
    "a\n  {% raw %}\n {{ x }}\n  {% endraw %}\nb",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "one\r\ntwo\rthree\n\n",
    "{{ 'a\nb' }}",
    "{% if no %}a{% elif i == 7 %}b{% elif yes %}c{% else %}d{% endif %}",
    "{% if no %}a{% else %}d{% endif %}",
    "{% if missing %}a{% endif %}.",
    "{% for x in numbers %}{{ loop.index }}/{{ loop.length }}:{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for x in numbers %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for x in empty %}a{% else %}none{% endfor %}",
    "{% for x in numbers if x > 1 %}{{ loop.index }}{{ x }} {% else %}none{% endfor %}",
    "{% for x in numbers if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in data.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in data %}{{ k }}{% endfor %}",
    "{% for (a, b) in [[1, 2], [3, 4]] %}{{ a }}{{ b }} {% endfor %}",
    "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}",
    "{% for a, b in [[1]] %}{{ a }}{% endfor %}",
    "{% for a, b in numbers %}{{ a }}{% endfor %}",
    "{% for x in nothing %}{% endfor %}",
    "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for c in 'añb' %}{{ c }}.{% endfor %}",
    "{% for x in numbers %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}!",
    "{% for x in numbers %}{% for y in [1, 2] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% break %}",
    "{% for x in numbers %}{% set y = x %}{% endfor %}{{ y }}",
    "{% set y = 0 %}{% for x in numbers %}{% set y = y + x %}{{ y }} {% endfor %}{{ y }}",
    "{% set ns = namespace(n=0) %}{% for x in numbers %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
    "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}",
    "{% set data.x = 1 %}",
    "{% set missing.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = [1] %}",
    "{% set x %}a{{ i }}b{% endset %}{{ x }}{{ x|length }}",
    "{% set x | upper | trim %} a{{ i }}b {% endset %}[{{ x }}]",
    "{% set x = 1, 2 %}{{ x }}",
    "{% if yes %}{% set x = 5 %}{% endif %}{{ x }}",
    "{% for x in [1, 2] %}{{ loop.cycle('a', 'b', 'c') }}{{ loop.changed(x // 2) }}{% endfor %}",
    "{% for x in nested %}{% for y in x %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in nested recursive %}{{ loop.depth }}[{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}]{% endfor %}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m(1, c=9) }}",
    "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m(1)|upper }}{{ m('x') ~ 'y' }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, b=2) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m() %}{{ i }}{{ y }}{% endmacro %}{% set y = 3 %}{{ m() }}{% set y = 4 %}{{ m() }}",
    "{% macro m() %}{% set y = 5 %}{{ y }}{% endmacro %}{{ m() }}{{ y }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% for x in numbers %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}in {{ i }}{% endcall %}",
    "{% macro l(xs) %}{% for x in xs %}{{ caller(x) }},{% endfor %}{% endmacro %}{% call(v) l(numbers) %}<{{ v }}>{% endcall %}",
    "{% macro m() %}{% if caller %}c{{ caller() }}{% else %}n{% endif %}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}",
    "{% macro m(a, caller=none) %}{{ caller() if caller else 'none' }}{% endmacro %}{{ m(1) }}{% call m(1) %}x{% endcall %}",
    "{% macro m() %}{% endmacro %}{{ m() }}.",
    "{% macro m(a, b) %}{% endmacro %}{{ m.name }}",
    "{% filter upper %}a{{ text }}{% endfilter %}",
    "{% filter trim|replace('a', 'b') %}  a  {% endfilter %}.",
    "{% with a = 1, b = 2 %}{{ a + b }}{% set a = 9 %}{% endwith %}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% block x %}a{{ i }}{% endblock %}{% block y scoped %}b{% endblock y %}",
    "{% generation %}a{{ i }}{% endgeneration %}b",
    "{% for x in numbers %}{% generation %}{{ x }}{% endgeneration %}{% endfor %}",
    "{% autoescape false %}{{ html }}{% endautoescape %}",
    "{% print i, text %}",
    "{% for n in 'abs attr batch capitalize center count d default dictsort e escape filesizeformat first float "
    "forceescape format groupby indent int items join last length list lower map max min pprint random reject rejectattr "
    "replace reverse round safe select selectattr slice sort string striptags sum title tojson trim truncate unique upper "
    "urlencode urlize wordcount wordwrap xmlattr nosuch'.split() %}{{ n is filter }} {% endfor %}",
    "{% for n in 'odd even divisibleby defined undefined filter test none boolean false true integer float lower upper "
    "string mapping number sequence iterable callable sameas escaped in == eq equalto != ne > gt greaterthan >= ge < lt "
    "lessthan <= le nosuch'.split() %}{{ n is test }} {% endfor %}",
    "{% if no %}{{ text | urlize }}{% endif %}ok",
    "{% from 'x' import y %}",
    "{% import 'x' as y with context %}",
    "{% include ['x', 'y'] ignore missing %}",
    "{% include 'x' %}",
    "{% if no %}{% include 'x' %}{% endif %}ok",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{% do numbers.append(1) %}",
    "{% nosuch %}",
    "{% if yes %}",
    "{% endif %}",
    "{% for x in numbers %}{% endif %}",
    "{% if yes %}{{ x | nosuch }}{% endif %}{% if no %}{{ x | nosuch }}{% endif %}",
    "{% if no %}{{ x | nosuch }}{% endif %}ok",
    "{% if no %}{% for x in numbers %}{{ x | nosuch }}{% endfor %}{% endif %}ok",
    "{{ (x | nosuch) if no else 1 }}",
    "{% macro m() %}{{ x | nosuch }}{% endmacro %}ok",
    "{% if no %}{{ x is nosuch }}{% endif %}ok",
    "{{ x is nosuch }}",
    "{# open",
    "{{ open",
    "{% raw %}",
    "a{#",
    "{% raw %} ",
    "{% raw %}{{ x }}",
    "{{",
    "{% ",
    "{{ '",
    "{{ (((((1))))) }}{{ [[[]]] }}",
    "{{ 'a' }} }} %} #}",
    "{ { } } {a}",
    "{{ {'a': {'b': 1}}.a.b }}{{ {'a':{}} }}",
    "{{-1}}{{- -1}}{{ 1 -}} x",
    "{%if yes%}a{%endif%}{%-if yes-%} b {%-endif-%} c",
    "{% for x in range(3) %}{{ x }}{% endfor %}",
    "{% for x in numbers | reverse %}{{ x }}{% endfor %}{% for x in data | dictsort %}{{ x[0] }}{% endfor %}",
    "{% for x in people | groupby('age') %}{{ x.grouper }}:{{ x.list | map(attribute='name') | join(',') }};{{ x[0] }}{{ x }}{% endfor %}",
    "{% set g = numbers | map('string') %}{{ g | join }}{{ g | join }}.",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}",
    "{% set j = joiner() %}{% for x in numbers %}{{ j() }}{{ x }}{% endfor %}",
    "{{ text }}{% set text = 'new' %}{{ text }}",
    "{% set messages = people[1:] %}{% for m in messages %}{{ m.name }}{% endfor %}",
    "{% for m in people %}{% if loop.first %}{% set first = m %}{% endif %}{{ first.name if first is defined else '-' }}{% endfor %}",
    "{% for m in people %}{% if m.town is defined and m.town.name == 'Rome' %}R{% elif m['town'] %}T{% else %}-{% endif %}{% endfor %}",
    "{{ 1 if 2 > 1 }}{{ 'a' if 1 > 2 }}!",
    "{% if not (yes and not no) or i in [7] %}a{% endif %}",
    "{% if people | selectattr('age', 'gt', 26) | list %}some{% endif %}",
    "{% if people | selectattr('age', 'gt', 99) %}generators are true{% endif %}",
    "{{ numbers | map('string') is iterable }}",
    "{% set x = [] %}{% set x = x + [1] %}{% set x = x + ['a'] %}{{ x }}",
    "{% set d = {} %}{% set d = dict(d, k=1) %}{{ d }}",
    "{% set d = {'k': 1} %}{% set _ = d.update({'j': 2}) %}",
    "{{ caller() }}",
    "{{ loop.index }}",
    "{% for x in [1] %}{% for y in [1] if loop.index == 1 %}{{ y }}{% endfor %}{% endfor %}",
    "{{ '{{' }}{{ '}}' }}{{ '{%' }}",
    "{{ \"{#\" }}x{# {{ #}y",
    "{% set x = '%}' %}{{ x }}",
    "{{ a.b.c if a is defined else 'x' }}",
    "{% for k, v in data | items %}{{ k }}{{ v | tojson }}{% endfor %}",
    "{% for line in lines.splitlines() %}[{{ line }}]{% endfor %}",
    "{%- for m in people -%}\n    {{- m.name -}}\n    {%- if not loop.last %}, {% endif -%}\n{%- endfor -%}\n  end",
    "{% for x in numbers %}\n  {{ x }}\n{% endfor %}\n",
    "\n{% if yes %}\n\na\n\n{% endif %}\n\n",
    "   {# c #}   \nx",
    "a   {#- c -#}   \nx",
    "{% set t = namespace(found=false) %}{% for m in people if m.age == 25 %}{% set t.found = true %}{% endfor %}{{ t.found }}",
    "{{ text[:5] ~ ' ' ~ text[7:] }}{{ text.split(', ')[-1] }}{{ text.split(', ') | last }}",
    "{% set content = '<think>a</think>b' %}{{ content.split('</think>')[-1].lstrip('\\n') }}{{ content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] }}",
    "{% macro t(s) -%}\n{{ s }}\n{%- endmacro %}[{{ t('x') }}]",
    "{% call undefined_macro() %}{% endcall %}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% if yes %}{% macro m() %}M{% endmacro %}{% endif %}{{ m() }}",
    "{% for x in [1, 2] %}{% set v = namespace(a=x) %}{{ v.a }}{% endfor %}",
    "{% set x = 5 %}{% block b %}{{ x }}{% endblock %}",
    "{{ [1, 2, 3][1:][0] }}{{ 'abc'[::-1][0] }}{{ (1, 2, 3)[-1:] }}",
    "{{ numbers.0 }}{{ nested.0.1 }}",
    "{{ 'a' 'b' ~ 'c' }}",
    "{%- set a = 1 -%}   {{- a -}}   {%- set b = 2 -%}   {{- b }}",
    "{{ yes and 'a' or 'b' }}{{ no and 'a' or 'b' }}",
    "{% if text is string and text | length > 3 and 'World' in text %}ok{% endif %}",
    "{{ (numbers | length) - 1 }}{{ numbers | length - 1 }}",
    "{% for x in numbers[1:] %}{{ numbers[loop.index0] }}{{ x }} {% endfor %}",
    "{{ '%s' | format(text) }}{{ 'a%sb' % i }}",
    "{% set x = {'a': [1, 2]} %}{{ x.a[0] }}{{ x['a'][1] }}{{ x.a | last }}",
    "{{ text | upper | replace('WORLD', 'X') | length }}",
    "{{- '' }}\n a {{ '' -}} \n b",
    "{{ i if i is not none else 'n' }}{{ missing if missing is not none else 'n' }}",
    "a{{ nothing if nothing else '' }}b{{ nothing or '' }}c",
    "{% set _ = namespace %}{{ _(z=1).z }}",
    "{{ data['a'][0] + 1 }}{{ data.get('a')[1] }}{{ data.get('q', {}).get('r', 's') }}",
    "{% for a in [1] %}{% for b in [2] %}{% for c in [3] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% endfor %}{% endfor %}",
    "{% set outer = 1 %}{% for x in [1] %}{% set outer = 2 %}{% if yes %}{% set outer = 3 %}{% endif %}{{ outer }}{% endfor %}{{ outer }}",
    "{% with outer = 1 %}{% with outer = 2 %}{{ outer }}{% endwith %}{{ outer }}{% endwith %}",
    "{% macro m(x) %}{% for y in x %}{{ y }}{% endfor %}{% endmacro %}{{ m([1, 2]) }}{{ m('ab') }}{{ m({'k': 1}) }}",
    "{{ m(1) }}{% macro m(x) %}{{ x }}{% endmacro %}",
    "{% set f = text.upper %}{{ f() }}",
    "{% set a = [1, 2] %}{{ [*a] }}",
    "{% set a = [1, 2] %}{% macro m(x, y) %}{{ x }}-{{ y }}{% endmacro %}{{ m(*a) }}{{ m(**{'x': 1, 'y': 2}) }}",
    "{{ range(*[1, 3]) | list }}",
    "{{ dict(**{'a': 1}) }}",
    "{{ text.upper(1) }}",
    "{{ text.nosuch() }}",
    "{{ data.nosuch() }}",
    "{{ raise_exception('a' ~ i) }}",
    "{{ ''.join(['a'] * 5) }}{{ '-' * 10 }}",
    "{% if 'a' is in 'abc' %}y{% endif %}{% if 1 is in [2] %}n{% endif %}",
    "{{ 5 is divisibleby(5) and 4 is even }}",
    "{{ x if x is defined }}|",
    "{% for x in numbers -%}\n{{ x }}{{ ',' if not loop.last }}\n{%- endfor %}",
    "{{ 'a'\n  ~ 'b' }}",
    "{{\n  text\n  | upper\n}}",
    "{% set x = {\n  'a': 1,\n  'b': 2\n} %}{{ x }}",
]


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.fromisoformat(NOW).strftime(form)
    return env


def render(template):
    try:
        text = environment().from_string(template).render(**VARIABLES)
        text.encode()
        return {"template": template, "text": text}
    except Exception as error:
        return {"template": template, "error": f"{type(error).__name__}: {error}"}


def main():
    cases = []
    for line in EXPRESSIONS.strip().split("\n"):
        cases.append(render("{{ " + line + " }}"))
    for template in TEMPLATES:
        cases.append(render(template))
    cases = [c for c in cases if " at 0x" not in c.get("text", "")]  # addresses of Python's objects
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases.json")
    with open(path, "w", encoding="utf-8") as out:
        out.write(json.dumps({"now": NOW, "variables": VARIABLES}, ensure_ascii=False)[:-1])
        rows = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
        out.write(f', "cases": [\n{rows}\n]}}\n')


main()
