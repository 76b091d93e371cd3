# SPDX-License-Identifier: Apache-2.0
"""Runs the part of C# that the test cases of Http11Probe are written in: static methods, lambdas, object initialisers,
patterns, and a few methods of strings, lists and bytes. Types are parsed and ignored. Enum values are strings."""
import re
import time
from types import SimpleNamespace

TOKEN = re.compile(r'''(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
|(?P<string>"(?:\\.|[^"\\])*")|(?P<char>'(?:\\.[^']*|[^'\\])')
|(?P<number>0x[0-9A-Fa-f_]+|[0-9][0-9_]*)|(?P<name>[A-Za-z_]\w*)
|(?P<symbol>=>|==|!=|<=|>=|&&|\|\||\?\?|\?\.|\.\.|\+\+|--|\+=|-=|[-+*/%!<>=?:;,.(){}\[\]^])''', re.S | re.X)
MODIFIERS = {"public", "private", "static", "internal", "const", "readonly", "sealed"}
TYPES = {"var", "string", "int", "bool", "byte", "char"}
ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,4}|u[0-9A-Fa-f]{4}|.)", re.S)
PLAIN = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def unescape(text):
    def one(match):
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) > 1 else PLAIN.get(code, code)
    return ESCAPE.sub(one, text)


def interpolated_end(text, at):
    """The end of an interpolated string, whose expressions may have strings."""
    depth = 0
    while depth or text[at] != '"':
        if text[at] == "\\":
            at += 1
        elif text[at] == '"':
            at = text.index('"', at + 1)
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
        at += 1
    return at + 1


class Return(Exception):
    def __init__(self, value):
        self.value = value


class Leave(Exception):  # break
    pass


class Next(Exception):  # continue
    pass


class Scope:
    def __init__(self, outer=None):
        self.outer, self.names = outer, {}

    def find(self, name):
        scope = self
        while scope and name not in scope.names:
            scope = scope.outer
        return scope

    def get(self, name):
        scope = self.find(name)
        if not scope:
            raise NameError(name)
        return scope.names[name]

    def set(self, name, value):
        (self.find(name) or self).names[name] = value


class Parser:
    """Turns the text into functions of a scope."""

    def __init__(self, text):
        self.tokens, at = [], 0
        while at < len(text):
            if text.startswith('$"', at):
                end = interpolated_end(text, at + 2)
                self.tokens.append(("interpolated", text[at:end]))
                at = end
                continue
            match = TOKEN.match(text, at)
            if not match:
                raise SyntaxError("C#: %r" % text[at:at + 40])
            if match.lastgroup != "skip":
                self.tokens.append((match.lastgroup, match.group()))
            at = match.end()
        self.tokens.append(("end", ""))
        self.at = 0

    def peek(self, ahead=0):
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][1]

    def kind(self):
        return self.tokens[self.at][0]

    def take(self):
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, text):
        if self.peek() != text or self.kind() in ("string", "char"):
            return False
        self.at += 1
        return True

    def expect(self, text):
        if not self.accept(text):
            raise SyntaxError("C#: %r instead of %r" % (" ".join(t for _, t in self.tokens[self.at:self.at + 8]), text))

    def closing(self, at):
        """The index of the bracket that closes the one at index `at`."""
        depth = 0
        while True:
            kind, text = self.tokens[at]
            if kind == "symbol":
                depth += (text in "([{") - (text in ")]}")
                if depth == 0:
                    return at
            at += 1

    def parse_type(self):
        if self.peek() == "(":
            self.at = self.closing(self.at) + 1
        else:
            self.take()
            while self.accept("."):
                self.take()
            if self.accept("<"):
                depth = 1
                while depth:
                    token = self.take()
                    depth += (token == "<") - (token == ">")
        while self.peek() == "?" or (self.peek() == "[" and self.peek(1) == "]"):
            self.at += 2 if self.peek() == "[" else 1

    # --- classes

    def parse_class(self):
        """Returns the scope of the first class of a file: its static methods and constants."""
        scope = Scope(GLOBALS)
        while not self.accept("class"):
            self.take()
        self.take()
        self.expect("{")
        while not self.accept("}"):
            while self.peek() in MODIFIERS:
                self.take()
            self.parse_type()
            name = self.take()
            if self.accept("="):
                scope.names[name] = self.parse_expression()(scope)
            else:
                scope.names[name] = self.parse_function(self.parse_parameters())(scope)
                self.accept(";")
                continue
            self.expect(";")
        return scope

    def parse_parameters(self):
        self.expect("(")
        names, variadic = [], False
        while not self.accept(")"):
            variadic |= self.accept("params")
            self.parse_type()
            names.append(self.take())
            self.accept(",")
        return names, variadic

    def parse_function(self, parameters):
        names, variadic = parameters
        if not self.accept("=>") or self.peek() == "{":
            body = self.parse_block()
        else:
            value = self.parse_expression()

            def body(s):
                raise Return(value(s))

        def make(outer):
            def call(*arguments):
                scope = Scope(outer)
                scope.names["yielded"] = []
                given = list(arguments)
                if variadic:
                    given = given[:len(names) - 1] + [given[len(names) - 1:]]
                scope.names.update(zip(names, given))
                try:
                    body(scope)
                except Return as end:
                    return end.value
                return scope.names["yielded"]
            return call
        return make

    # --- statements

    def parse_block(self):
        self.expect("{")
        steps = []
        while not self.accept("}"):
            steps.append(self.parse_statement())

        def run(s):
            inner = Scope(s)
            for step in steps:
                step(inner)
        return run

    def parse_condition(self):
        self.expect("(")
        condition = self.parse_expression()
        self.expect(")")
        return condition

    def parse_statement(self):
        if self.peek() == "{":
            return self.parse_block()
        if self.accept("if"):
            return self.parse_if()
        if self.accept("while"):
            return self.parse_loop(self.parse_condition(), lambda s: None)
        if self.accept("for"):
            return self.parse_for()
        if self.accept("foreach"):
            return self.parse_foreach()
        step = self.parse_simple()
        self.expect(";")
        return step

    def parse_if(self):
        condition, yes = self.parse_condition(), self.parse_statement()
        no = self.parse_statement() if self.accept("else") else lambda s: None
        return lambda s: (yes if condition(s) else no)(s)

    def parse_loop(self, condition, after):
        body = self.parse_statement()

        def run(s):
            while condition(s):
                try:
                    body(s)
                except Leave:
                    break
                except Next:
                    pass
                after(s)
        return run

    def parse_for(self):
        self.expect("(")
        first = self.parse_simple()
        self.expect(";")
        condition = self.parse_expression()
        self.expect(";")
        after = self.parse_simple()
        self.expect(")")
        loop = self.parse_loop(condition, after)

        def run(s):
            inner = Scope(s)
            first(inner)
            loop(inner)
        return run

    def parse_names(self):
        """The name or the tuple of names that a declaration introduces."""
        if not self.accept("("):
            return self.take()
        names = []
        while not self.accept(")"):
            names.append(self.take())
            self.accept(",")
        return names

    def parse_foreach(self):
        self.expect("(")
        self.parse_type()
        names = self.parse_names()
        self.expect("in")
        items = self.parse_expression()
        self.expect(")")
        body = self.parse_statement()

        def run(s):
            values = items(s)
            for item in list(values.items()) if isinstance(values, dict) else values:
                inner = Scope(s)
                declare(inner, names, SimpleNamespace(Key=item[0], Value=item[1])
                        if isinstance(values, dict) and isinstance(names, str) else item)
                try:
                    body(inner)
                except Leave:
                    break
                except Next:
                    pass
        return run

    def parse_simple(self):
        if self.accept("return"):
            value = self.parse_expression() if self.peek() != ";" else lambda s: None

            def leave(s):
                raise Return(value(s))
            return leave
        if self.accept("yield"):
            self.expect("return")
            value = self.parse_expression()
            return lambda s: s.get("yielded").append(value(s))
        for word, error in ("break", Leave), ("continue", Next):
            if self.accept(word):
                def jump(s, error=error):
                    raise error()
                return jump
        self.accept("const")
        if self.peek() in TYPES and self.peek(1) not in (".", "("):
            self.parse_type()
        elif not (self.peek() == "var" and self.peek(1) == "("):
            return self.parse_assignment()
        else:
            self.take()
        names = self.parse_names()
        self.expect("=")
        value = self.parse_expression()
        return lambda s: declare(s, names, value(s))

    def parse_assignment(self):
        start = self.at
        target = self.parse_expression()
        operation = self.peek()
        if operation not in ("=", "+=", "-=", "++", "--"):
            return target
        end = self.at
        self.take()
        value = (lambda s: 1) if operation in ("++", "--") else self.parse_expression()

        def changed(s):
            if operation == "=":
                return value(s)
            return target(s) + value(s) * (1 if operation[0] == "+" or isinstance(target(s), str) else -1)
        if end == start + 1:
            name = self.tokens[start][1]
            return lambda s: s.set(name, changed(s))
        after, self.at = self.at, start  # NAME[INDEX] = VALUE
        name = self.take()
        self.expect("[")
        index = self.parse_expression()
        self.at = after

        def store(s):
            s.get(name)[index(s)] = changed(s)
        return store

    # --- expressions

    def parse_expression(self):
        if self.tokens[self.at + 1][1] == "=>" and self.kind() == "name":
            return self.parse_function(([self.take()], False))
        if self.peek() == "(" and self.tokens[self.closing(self.at) + 1][1] == "=>":
            return self.parse_function((self.parse_names(), False))
        condition = self.parse_binary(0)
        if not self.accept("?"):
            return condition
        yes = self.parse_expression()
        self.expect(":")
        no = self.parse_expression()
        return lambda s: (yes if condition(s) else no)(s)

    LEVELS = [("??",), ("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">=", "is"), ("+", "-"), ("*", "/", "%")]

    def parse_binary(self, level):
        if level == len(self.LEVELS):
            return self.parse_unary()
        left = self.parse_binary(level + 1)
        while self.kind() in ("symbol", "name") and self.peek() in self.LEVELS[level]:
            operation = self.take()
            if operation == "is":
                left = self.parse_is(left)
            else:
                left = combine(operation, left, self.parse_binary(level + 1))
        return left

    def parse_is(self, value):
        pattern = self.parse_pattern()
        return lambda s: pattern(s, value(s))

    def parse_pattern(self):
        left = self.parse_pattern_and()
        while self.accept("or"):
            right, first = self.parse_pattern_and(), left
            left = lambda s, v, a=first, b=right: a(s, v) or b(s, v)
        return left

    def parse_pattern_and(self):
        left = self.parse_pattern_one()
        while self.accept("and"):
            right, first = self.parse_pattern_one(), left
            left = lambda s, v, a=first, b=right: a(s, v) and b(s, v)
        return left

    def parse_pattern_one(self):
        if self.accept("not"):
            inner = self.parse_pattern_one()
            return lambda s, v: not inner(s, v)
        if self.accept("("):
            inner = self.parse_pattern()
            self.expect(")")
            return inner
        operation = self.take() if self.peek() in ("<", ">", "<=", ">=") and self.kind() == "symbol" else "=="
        constant = self.parse_binary(5)
        return lambda s, v: bool(combine(operation, lambda _: v, constant)(s))

    def parse_unary(self):
        if self.kind() == "symbol" and self.peek() in ("!", "-", "^"):
            operation = self.take()
            value = self.parse_unary()
            return (lambda s: not value(s)) if operation == "!" else (lambda s: -value(s))
        if self.kind() == "symbol" and self.peek() == "..":
            return self.parse_range(lambda s: None)
        return self.parse_postfix(self.parse_primary())

    def parse_range(self, start):
        self.expect("..")
        end = (lambda s: None) if self.peek() == "]" else self.parse_binary(5)
        return lambda s: slice(start(s), end(s))

    def parse_postfix(self, value):
        while self.kind() == "symbol":
            if self.accept("."):
                value = access(value, self.take(), False)
            elif self.accept("?."):
                value = self.parse_conditional(value)
            elif self.accept("("):
                value = self.parse_call(value)
            elif self.accept("["):
                value = self.parse_index(value)
            elif self.peek() == "!" and self.peek(1) in (".", ")", ";", ",", "["):
                self.take()
            else:
                break
        return value

    def parse_conditional(self, value):
        """?. leaves out the rest of the chain for null."""
        held = {}
        rest = self.parse_postfix(access(lambda s: held["value"], self.take(), False))

        def run(s):
            before = held.get("value")
            held["value"] = value(s)
            try:
                return None if held["value"] is None else rest(s)
            finally:
                held["value"] = before
        return run

    def parse_call(self, function):
        arguments = []
        while not self.accept(")"):
            if self.accept("out"):
                if self.peek() in TYPES:
                    self.take()
                name = self.take()
                arguments.append(lambda s, name=name: Out(s, name))
            else:
                if self.kind() == "name" and self.peek(1) == ":" and self.peek(2) != ":":
                    self.at += 2
                arguments.append(self.parse_expression())
            self.accept(",")
        return lambda s: function(s)(*[argument(s) for argument in arguments])

    def parse_index(self, value):
        index = self.parse_expression()
        if self.peek() == "..":
            index = self.parse_range(index)
        self.expect("]")
        return lambda s: value(s)[index(s)]

    def parse_primary(self):
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "interpolated":
            return interpolate(text[2:-1])
        if kind in ("string", "char"):
            value = unescape(text[1:-1])
            return lambda s: value
        if kind == "number":
            number = int(text.replace("_", ""), 0 if text.startswith("0x") else 10)
            return lambda s: number
        if text == "new":
            return self.parse_new()
        if text == "[":
            return self.parse_items("]")
        if text == "(":
            values = [self.parse_expression()]
            while self.accept(","):
                values.append(self.parse_expression())
            self.expect(")")
            return values[0] if len(values) == 1 else lambda s: tuple(value(s) for value in values)
        if kind != "name":
            raise SyntaxError("C#: %r" % text)
        constants = {"null": None, "true": True, "false": False}
        if text in constants:
            return lambda s: constants[text]
        return lambda s: s.get(text)

    def parse_items(self, end):
        items = []
        while not self.accept(end):
            items.append(self.parse_expression())
            self.accept(",")
        return lambda s: [item(s) for item in items]

    def parse_new(self):
        name = "" if self.peek() in ("(", "[", "{") else self.take()
        while self.accept("."):
            name = self.take()
        if self.accept("<"):
            while self.peek() not in ("(", "{"):
                self.take()
        if self.accept("["):
            if not self.accept("]"):
                size = self.parse_expression()
                self.expect("]")
                return lambda s: bytearray(size(s))
            self.expect("{")
            return self.parse_items("}")
        build = self.parse_call(lambda s: CLASSES.get(name, Object)) if self.accept("(") else lambda s: Object()
        return self.parse_initialiser(build) if self.accept("{") else build

    def parse_initialiser(self, build):
        members = []
        while not self.accept("}"):
            member = self.take()
            self.expect("=")
            members.append((member, self.parse_expression()))
            self.accept(",")

        def run(s):
            value = build(s)
            for member, expression in members:
                setattr(value, member, expression(s))
            return value
        return run


# --- values


class Object:
    """An object of any class; members that were not set are null."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Out:
    def __init__(self, scope, name):
        self.scope, self.name = scope, name

    def set(self, value):
        if self.name != "_":
            self.scope.names[self.name] = value


class Builder:
    def __init__(self):
        self.parts = []

    def Append(self, text):
        self.parts.append(text)
        return self

    def ToString(self):
        return "".join(self.parts)


class Random:
    """.NET's generator with a seed, which is the subtractive one of Knuth."""
    BIG, FIRST = 2147483647, 161803398

    def __init__(self, seed):
        values = [0] * 56
        last, one = self.FIRST - abs(seed), 1
        values[55] = last
        for i in range(1, 55):
            at = 21 * i % 55
            values[at] = one
            one = (last - one) % self.BIG if last - one < 0 else last - one
            last = values[at]
        for _ in range(4):
            for i in range(1, 56):
                values[i] -= values[1 + (i + 30) % 55]
                if values[i] < 0:
                    values[i] += self.BIG
        self.values, self.one, self.two = values, 0, 21

    def NextBytes(self, buffer):
        for i in range(len(buffer)):
            self.one, self.two = self.one % 55 + 1, self.two % 55 + 1
            value = self.values[self.one] - self.values[self.two]
            value = value - 1 if value == self.BIG else value
            self.values[self.one] = value = value + self.BIG if value < 0 else value
            buffer[i] = value & 255


def ordinal(options):
    return str.lower if "IgnoreCase" in options else str


def copy(source, target, at):
    target[at:at + len(source)] = bytes(source)


def try_get(values, key, out):
    found = next((v for k, v in values.items() if k.lower() == key.lower()), None) \
        if getattr(values, "ignore_case", False) else values.get(key)
    out.set(found)
    return found is not None


def contains(value, part, options=""):
    return ordinal(options)(part) in ordinal(options)(value) if isinstance(value, str) else part in value


METHODS = {
    "Contains": contains,
    "ContainsKey": lambda v, key: any(k.lower() == key.lower() for k in v),
    "TryGetValue": try_get,
    "CopyTo": copy,
    "ToString": lambda v, form="": "%x" % v if form == "x" else str(v),
    "Equals": lambda v, other, options="": ordinal(options)(v) == ordinal(options)(other),
    "StartsWith": lambda v, start, options="": ordinal(options)(v).startswith(ordinal(options)(start)),
    "EndsWith": lambda v, end, options="": ordinal(options)(v).endswith(ordinal(options)(end)),
    "IndexOf": lambda v, part, at=0, options="": v.find(part, at if isinstance(at, int) else 0),
    "Trim": lambda v, *c: v.strip("".join(c) or None),
    "TrimEnd": lambda v, *c: v.rstrip("".join(c) or None),
    "TrimStart": lambda v, *c: v.lstrip("".join(c) or None),
    "Split": lambda v, by, options="": [p for p in v.split(by) if p or "RemoveEmpty" not in options],
    "Any": lambda v, test: any(test(x) for x in v),
    "All": lambda v, test: all(test(x) for x in v),
    "Select": lambda v, make: [make(x) for x in v],
    "Add": lambda v, x: v.append(x),
}


def access(value, name, _):
    def run(s):
        v = value(s)
        if isinstance(v, type) or isinstance(v, (Object, SimpleNamespace, Builder, Random, Namespace)):
            return getattr(v, name)
        if name in ("Length", "Count"):
            return len(v)
        if name == "Value":
            return v
        return lambda *arguments: METHODS[name](v, *arguments)
    return run


def text_of(value):
    return "" if value is None else value if isinstance(value, str) else str(value)


def combine(operation, left, right):
    def add(a, b):
        return text_of(a) + text_of(b) if isinstance(a, str) or isinstance(b, str) else a + b

    def ordered(test):
        return lambda s: (lambda a, b: a is not None and b is not None and test(a, b))(left(s), right(s))
    return {
        "??": lambda s: (lambda a: right(s) if a is None else a)(left(s)),
        "||": lambda s: left(s) or right(s),
        "&&": lambda s: left(s) and right(s),
        "==": lambda s: left(s) == right(s),
        "!=": lambda s: left(s) != right(s),
        "<": ordered(lambda a, b: a < b),
        ">": ordered(lambda a, b: a > b),
        "<=": ordered(lambda a, b: a <= b),
        ">=": ordered(lambda a, b: a >= b),
        "+": lambda s: add(left(s), right(s)),
        "-": lambda s: left(s) - right(s),
        "*": lambda s: left(s) * right(s),
        "/": lambda s: left(s) // right(s),
        "%": lambda s: left(s) % right(s),
    }[operation]


def declare(scope, names, value):
    for name, one in [(names, value)] if isinstance(names, str) else zip(names, value):
        scope.names[name] = one


def interpolate(text):
    parts, at = [], 0
    while at < len(text):
        if text[at:at + 2] in ("{{", "}}"):
            parts.append(text[at])
            at += 2
        elif text[at] == "{":
            end = at
            depth = 0
            while True:
                depth += (text[end] == "{") - (text[end] == "}")
                end += 1
                if depth == 0:
                    break
            parts.append(Parser(text[at + 1:end - 1]).parse_expression())
            at = end
        else:
            end = min([i for i in (text.find("{", at), text.find("}", at)) if i >= 0] or [len(text)])
            parts.append(unescape(text[at:end]))
            at = end
    return lambda s: "".join(part if isinstance(part, str) else text_of(part(s)) for part in parts)


class Namespace:
    """An enum, whose values are their names, or a class with static members."""

    def __init__(self, **members):
        self.__dict__.update(members)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def try_parse(text, *rest):
    hexadecimal = "HexNumber" in rest
    try:
        rest[-1].set(int(text, 16 if hexadecimal else 10))
    except ValueError:
        return False
    return True


def try_date(text, *_):
    try:
        time.strptime(text, "%a, %d %b %Y %H:%M:%S GMT")
    except ValueError:
        return False
    return True


ASCII = Namespace(GetBytes=lambda text: text.encode("ascii", "replace"),
                  GetByteCount=lambda text: len(text))
CLASSES = {"StringBuilder": Builder, "Random": Random, "Dictionary": dict, "List": list,
           "string": lambda character, count: character * count}
GLOBALS = Scope()
GLOBALS.names.update(
    Encoding=Namespace(ASCII=ASCII), Enumerable=Namespace(Range=lambda start, n: list(range(start, start + n))),
    StatusCodeRange=Namespace(Exact=lambda n: range(n, n + 1), Range=lambda a, b: range(a, b + 1),
                              Range2xx=range(200, 300), Range4xx=range(400, 500), Range4xxOr5xx=range(400, 600)),
    int=Namespace(TryParse=try_parse), DateTime=Namespace(TryParseExact=try_date),
    TimeSpan=Namespace(FromMilliseconds=lambda n: n / 1000, FromSeconds=lambda n: n, Zero=0),
    string=Namespace(Empty="", Join=lambda by, parts: by.join(parts), IsNullOrEmpty=lambda t: not t,
                     IsNullOrWhiteSpace=lambda t: not (t or "").strip(),
                     Equals=lambda a, b, options="": ordinal(options)(a) == ordinal(options)(b)),
    System=Namespace(Globalization=Namespace(NumberStyles=Namespace(), CultureInfo=Namespace(),
                                             DateTimeStyles=Namespace())))
for enum in ("TestCategory", "TestVerdict", "RfcLevel", "ConnectionState", "StringComparison", "StringSplitOptions"):
    GLOBALS.names[enum] = Namespace()
