"""Edits of the files of an environment: those that change what is compiled, those that do not, and floats in all places."""

from typing import NamedTuple


class Edit(NamedTuple):
    """Files of an environment, and a text in one of them that becomes another."""

    files: dict[str, str]
    old: str
    new: str
    file: str = "env.py"
    result: tuple[float, float] | None = None
    """What step(4.0) is before and after, where a test compiles it, too."""


def one(env: str, old: str, new: str, result: tuple[float, float] | None = None) -> Edit:
    return Edit({"env.py": env}, old, new, "env.py", result)


def two(env: str, helper: str, old: str, new: str, result: tuple[float, float] | None = None) -> Edit:
    return Edit({"env.py": env, "helper.py": helper}, old, new, "helper.py", result)


STEP = "def step(x):\n    return "
IN_PACKAGE = {"lab/__init__.py": "", "lab/constants.py": "G = 2.0\nUNUSED = 1\n", "lab/moon.py": "G = 3.0\n"}
NUMPY = "import numpy as np\n\n"
NJIT = "from numba import njit\n\n\n@njit\ndef force(x):\n    return x * 2.0\n"
FACTORY = "{head}def made({name}):\n    def step(x):\n        return {body}\n    return step\n\n\nstep = made({value})\n"

CHANGES = {
    "a number in the code": one(f"{STEP}x * 2.0\n", "2.0", "3.0", (8.0, 12.0)),
    "the sign of a zero": one(f"{STEP}x + 0.0\n", "0.0", "-0.0"),
    "a constant": one(f"G = 2.0\n{STEP}x * G\n", "2.0", "3.0", (8.0, 12.0)),
    "the sign of a constant zero": one(f"G = 0.0\n{STEP}x * G\n", "0.0", "-0.0"),
    "the type of a constant": one(f"G = 2\n{STEP}x * G\n", "2", "2.0"),
    "a truth for an integer": one(f"G = 1\n{STEP}x * G\n", "1", "True"),
    "a constant of another module": two(f"import helper\n{STEP}x * helper.G\n", "G = 2.0\n", "2.0", "3.0", (8.0, 12.0)),
    "a constant two modules deep": Edit(
        IN_PACKAGE | {"env.py": f"import lab.constants\n{STEP}x * lab.constants.G\n"}, "2.0", "3.0", "lab/constants.py", (8.0, 12.0)
    ),
    "a constant two modules deep, under another name": Edit(
        IN_PACKAGE | {"env.py": f"import lab.constants as law\n{STEP}x * law.G\n"}, "lab.constants", "lab.moon", "env.py", (8.0, 12.0)
    ),
    "a number in a tuple in a tuple": one(f"G = (1.0, (2.0, 5))\n{STEP}x * G[1][0]\n", "2.0", "3.0"),
    "a type in a tuple": one(f"G = (1, 2)\n{STEP}x * G[0]\n", "(1, 2)", "(1.0, 2)"),
    "a field of a NamedTuple": one(
        f"from typing import NamedTuple\nclass C(NamedTuple):\n    a: float\n    b: float\nc = C(1.0, 2.0)\n{STEP}x * c.b\n", "2.0", "3.0"
    ),
    "the fields' order": one(
        f"from typing import NamedTuple\nclass C(NamedTuple):\n    a: float\n    b: float\n{STEP}C(x, 1.0).a\n",
        "    a: float\n    b: float\n",
        "    b: float\n    a: float\n",
        (4.0, 1.0),
    ),
    "a field's default": one(
        f"from typing import NamedTuple\nclass C(NamedTuple):\n    a: float\n    b: float = 2.0\n{STEP}C(x).b\n", "2.0", "3.0"
    ),
    "an Enum's member in another module": two(
        f"import helper\n{STEP}x * helper.Kind.A.value\n", "from enum import IntEnum\nclass Kind(IntEnum):\n    A = 2\n", "A = 2", "A = 3"
    ),
    "which member a name stands for": one(
        f"from enum import IntEnum\nclass Kind(IntEnum):\n    A = 2\n    B = 3\nkind = Kind.A\n{STEP}x * kind\n", "Kind.A", "Kind.B"
    ),
    "a number in an array": one(f"{NUMPY}G = np.array([1.0, 2.0])\n{STEP}x * G[1]\n", "2.0", "3.0"),
    "an array's shape": one(
        f"{NUMPY}G = np.arange(6).reshape(2, 3)\n{STEP}x * G.shape[0]\n", "reshape(2, 3)", "reshape(3, 2)", (8.0, 12.0)
    ),
    "an array's dtype": one(f'{NUMPY}G = np.zeros(2, "i4")\n{STEP}x + G[0] * G.itemsize\n', '"i4"', '"f4"'),
    "an array's order": one(f'{NUMPY}G = np.ones((2, 2), order="C")\n{STEP}x * G[0, 1]\n', '"C"', '"F"'),
    "a long array in a tuple": one(
        f"{NUMPY}LONG = np.arange(5000)\nLONG[2500] = 2\nG = (1, LONG)\n{STEP}x * G[1][2500]\n", "[2500] = 2", "[2500] = 3", (8.0, 12.0)
    ),
    "a NumPy number's type": one(f"{NUMPY}G = np.int32(2)\n{STEP}x * G\n", "int32", "int64"),
    "an alias of a type": one(f"{NUMPY}kind = np.int32\n{STEP}kind(x * 0.6)\n", "np.int32", "np.float32", (2.0, 2.4)),
    "an alias of a function": one(
        f"def double(x):\n    return x * 2.0\ndef triple(x):\n    return x * 3.0\nlaw = double\n{STEP}law(x)\n",
        "law = double",
        "law = triple",
        (8.0, 12.0),
    ),
    "an alias of a built-in": one(f"law = max\n{STEP}law(x, 5)\n", "law = max", "law = min", (5.0, 4.0)),
    "an alias of a library's function": one(f"import math\nlaw = math.sqrt\n{STEP}law(x)\n", "math.sqrt", "math.floor", (2.0, 4.0)),
    "a name that hides a built-in": one(f"{STEP}abs(x)\n", "def step", "def abs(x):\n    return -x\n\n\ndef step"),
    "an attribute of a library": one(f"{NUMPY}{STEP}np.sqrt(x)\n", "np.sqrt", "np.negative"),
    "a helper's code": two(f"from helper import force\n{STEP}force(x)\n", "def force(x):\n    return x * 2.0\n", "2.0", "3.0"),
    "a helper reached through its module": two(
        f"import helper\n{STEP}helper.force(x)\n", "def force(x):\n    return x * 2.0\n", "2.0", "3.0", (8.0, 12.0)
    ),
    "a helper of a helper": two(
        f"from helper import force\n{STEP}force(x)\n",
        "import math\n\n\ndef inner(x):\n    return x * 2.0\n\n\ndef force(x):\n    return inner(x)\n",
        "2.0",
        "3.0",
    ),
    "a helper's default": two(
        f"from helper import force\n{STEP}force(x)\n", "def force(x, g=2.0):\n    return x * g\n", "2.0", "3.0", (8.0, 12.0)
    ),
    "a default's type": two(f"from helper import force\n{STEP}force(x)\n", "def force(x, g=2):\n    return x * g\n", "g=2", "g=2.0"),
    "the order of a helper's parameters": two(
        f"from helper import force\n{STEP}force(a=x, b=1.0)\n",
        "def force(a, b):\n    return a - b\n",
        "(a, b):\n    return a - b",
        "(b, a):\n    return b - a",
        (3.0, -3.0),
    ),
    "the names of arguments in a call": one(
        f"def force(a, b):\n    return a - b\n{STEP}force(a=x, b=1.0)\n", "a=x, b=1.0", "b=x, a=1.0", (3.0, -3.0)
    ),
    "the code of a helper that is decorated": two(f"from helper import force\n{STEP}force(x)\n", NJIT, "2.0", "3.0", (8.0, 12.0)),
    "an option of a helper that is decorated": two(f"from helper import force\n{STEP}force(x)\n", NJIT, "@njit", "@njit(fastmath=True)"),
    "a tuple in a closure": one(FACTORY.format(head="", name="g", body="x * g[0]", value="(2.0, 1)"), "2.0", "3.0"),
    "a function in a closure": one(
        FACTORY.format(head="def force(x):\n    return x * 2.0\n", name="f", body="f(x)", value="force"), "2.0", "3.0", (8.0, 12.0)
    ),
    "a module in a closure": two(
        FACTORY.format(head="import helper\n", name="m", body="x * m.G", value="helper"), "G = 2.0\n", "2.0", "3.0", (8.0, 12.0)
    ),
    "a constant of a function within": one(
        "G = 2.0\n\n\ndef step(x):\n    def inner(y):\n        return y * G\n    return inner(x)\n", "G = 2.0", "G = 3.0"
    ),
}
SAME = {
    "a comment": one(f"G = 2.0\n{STEP}x * G\n", "x * G\n", "x * G  # the force\n"),
    "a docstring": one('G = 2.0\ndef step(x):\n    """Old."""\n    return x * G\n', "Old", "New"),
    "a helper's docstring": two(
        f"from helper import force\n{STEP}force(x)\n", "def force(x):\n    'Old.'\n    if x < 0:\n        return None\n", "Old", "New"
    ),
    "an annotation": one(f"G = 2.0\n{STEP}x * G\n", "(x)", "(x: float)"),
    "another global": one(f"OTHER = 2.0\nG = 2.0\n{STEP}x * G\n", "OTHER = 2.0", "OTHER = 3.0"),
    "another constant of a module": Edit(
        IN_PACKAGE | {"env.py": f"import lab.constants\n{STEP}x * lab.constants.G\n"}, "UNUSED = 1", "UNUSED = 2", "lab/constants.py"
    ),
    "how a constant is written": one(f"G = 2.0\n{STEP}x * G\n", "2.0", "1.0 + 1.0"),
    "how a constant is imported": two(f"import helper\nG = helper.G\n{STEP}x * G\n", "G = 2.0\n", "G = 2.0\n", "H = G = 2.0\n"),
}
FLOATS = {
    "in another module": two(f"import helper\n{STEP}x * helper.G\n", "G = 0.1\n", "", ""),
    "in a library": one(f"import math\n{STEP}math.sqrt(x) * math.pi\n", "", ""),
    "in a closure": one(FACTORY.format(head="", name="g", body="x * g", value="0.1"), "", ""),
    "in a helper of another module": two(f"import helper\n{STEP}helper.force(x)\n", "def force(x):\n    return x * 0.1\n", "", ""),
    "in a helper that is decorated": two(f"from helper import force\n{STEP}force(x)\n", NJIT.replace("2.0", "0.1"), "", ""),
}
