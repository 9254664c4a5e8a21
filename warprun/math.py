"""Provide scalar float32 mathematics for environment functions: branch-free, without libm, float64 or NumPy ufuncs.

All functions reduce the argument to a short interval, evaluate a polynomial there, and undo the reduction. Without branches they vectorise
on CPU. The polynomials minimise the largest *relative* error over the interval against 40-digit values (Lawson, "Contributions to the
theory of linear least maximum approximation", UCLA 1961: least squares whose weights are multiplied by the error until it is level).
Coefficients were rounded to float32 one at a time, from the lowest on, and the others were fitted again, so that rounding adds no error.
Horner's rule evaluates from the last coefficient to the first. Constants are split into exact parts as in Cody and Waite, "Software Manual
for the Elementary Functions", 1980.

The errors stated below are the largest measured against float64 over the whole range (checked by tests/test_math.py). 1 ulp is at most
1.2e-7 of the value. NaN in gives NaN out. Compiled code and plain Python differ in the last bits, because compiled code fuses
multiplications and additions; `floor`, `sqrt`, `fmod` and `wrap_angle` give the same bits everywhere.
"""

from math import sqrt as _square_root

import numpy as np

float32 = np.float32
int32 = np.int32
int64 = np.int64

pi = 3.141592653589793

_INF = float("inf")
_NAN = float("nan")
# 1.5 * 2^23. Adding it to a number below 2^22 and subtracting it again rounds to the nearest integer, which is in the low bits of the sum.
_ROUND = 12582912.0
_ROUND_BITS = 0x4B400000
# pi in three parts of 8, 9 and 24 bits: multiples of the first two up to 2^15 are exact.
_PI_1 = 3.140625
_PI_2 = 9.670257568359375e-4
_PI_3 = 6.278329573009626e-7
# The sum of the first two in three parts of 5, 5 and 3 bits: multiples of these up to 2^18, and of halves, are exact without fusing, too.
_PI_A = 3.125
_PI_B = 0.0166015625
_PI_C = -9.5367431640625e-6
_ANGLE_LIMIT = 1e7
# log(2) in two parts; multiples of the first up to 2^15 are exact.
_LN2_1 = 0.693359375
_LN2_2 = -2.1219444005469057e-4
_LN2 = 0.6931471805599453
_SQRT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL = 1.1754943508222875e-38
# 2 / log(2), the next coefficient of log2, and log10(2), each in two parts of which the first has 12 bits.
_LOG2_1 = 2.884765625
_LOG2_2 = 6.244567779268e-4
_LOG2_CUBE_1 = 0.961669921875
_LOG2_CUBE_2 = 0.9617967009544373 - _LOG2_CUBE_1
_LOG10_2_1 = 0.301025390625
_LOG10_2_2 = 4.6050389811952e-6
# Bits of the quotient that one step of fmod removes: float32 computes them to within one unit. 13 steps cover 2^286, beyond any float32.
_FMOD_BITS = 22
_FMOD_STEPS = 13


def bits(x):
    """Return the int32 with the bits of the float32 `x`."""
    return float32(x).view(int32)


def from_bits(i):
    """Return the float32 with the bits of the int32 `i`."""
    return int32(i).view(float32)


def where(condition, a, b):
    """Return `a` if `condition` else `b`; both must have the same type, because an int with a float makes a float64."""
    return a if condition else b


def minimum(a, b):
    """Return the lesser of two numbers of the same type."""
    return a if a < b or a != a else b


def maximum(a, b):
    """Return the greater of two numbers of the same type."""
    return a if a > b or a != a else b


def clip(x, low, high):
    """Return `x` limited to [low, high]; all of the same type."""
    x = low if x < low else x
    return high if x > high else x


def floor(x):
    """Return the greatest integer not above `x`, as float32; exact."""
    x = float32(x)
    size = abs(x)
    nearest = (size + 8388608.0) - 8388608.0  # from 2^23 on every float32 is an integer
    nearest = nearest if x >= 0.0 else -nearest
    below = nearest - 1.0 if nearest > x else nearest
    return below if size < 8388608.0 else x


def sqrt(x):
    """Return the square root of `x`, nan below 0; correctly rounded."""
    x = float32(x)
    return float32(_square_root(x if x >= 0.0 else _NAN))


def _sine_of_reduced(x, half_turns, parity):
    """Return sin(x - half_turns pi), negated where the low bit of `parity` is set; error of the polynomial 6.2e-9."""
    r = (((x - half_turns * _PI_A) - half_turns * _PI_B) - half_turns * _PI_C) - half_turns * _PI_3
    z = r * r
    p = ((2.606103e-06 * z - 1.9809778e-04) * z + 8.333069e-03) * z - 0.1666666
    y = clip(r + r * (z * p), float32(-1.0), float32(1.0))  # rounding may give more than 1
    y = from_bits(bits(y) ^ (parity << 31))
    return y if abs(x) < _ANGLE_LIMIT else float32(_NAN)


def sin(x):
    """Return the sine of `x` rad, within [-1, 1].

    Error 1.3e-7 (2.1 ulp for |x| < pi) up to |x| = 50 000 and 2e-7 up to 1 000 000. It grows beyond. From 1e7 on, where float32 has
    steps of 1 rad, the result is nan.
    """
    x = float32(x)
    rounded = x * 0.3183098861837907 + _ROUND
    return _sine_of_reduced(x, rounded - _ROUND, bits(rounded))


def cos(x):
    """Return the cosine of `x` rad, within [-1, 1]; error as of `sin`."""
    x = float32(x)
    rounded = (x * 0.3183098861837907 - 0.5) + _ROUND  # cos x = sin(x + pi/2): half a half-turn more
    return _sine_of_reduced(x, (rounded - _ROUND) + 0.5, bits(rounded) + 1)


def tan(x):
    """Return the tangent of `x` rad; error 4 ulp for |x| < pi/2; range as of `sin`."""
    return sin(x) / cos(x)


def _unfused(product):
    """Return `product` without its lowest bit, so that compilers cannot fuse it with the following addition."""
    return from_bits(bits(product) & -2)


def wrap_angle(x):
    """Return `x` rad less the multiple of 2 pi that brings it to [-pi, pi): not below float32(-pi), and below float32(pi).

    Error 1.3e-7 up to |x| = 50 000, where the interval holds; nan from 1e7. The same bits on every target.
    """
    x = float32(x)
    turns = (_unfused(x * 0.15915494309189535) + _ROUND) - _ROUND
    # Exact up to 2^14 turns, and so is the correction where x / 2 pi was rounded to the neighbour.
    r = (x - _unfused(turns * (2.0 * _PI_1))) - _unfused(turns * (2.0 * _PI_2))
    wrapped = r - _unfused(turns * (2.0 * _PI_3))
    more = 1.0 if wrapped >= pi else (-1.0 if wrapped < -pi else 0.0)
    r = (r - more * (2.0 * _PI_1)) - more * (2.0 * _PI_2)
    wrapped = r - _unfused((turns + more) * (2.0 * _PI_3))
    return wrapped if abs(x) < _ANGLE_LIMIT else float32(_NAN)


def atan2(y, x):
    """Return the angle of the point (x, y) from the x axis, rad in [-pi, pi], 0 at the origin; error 2 ulp."""
    y, x = float32(y), float32(x)
    a, b = abs(x), abs(y)
    low, high = (b, a) if a >= b else (a, b)
    q = low / high
    q = (1.0 if high > 0.0 else 0.0) if low == high else q  # 0 / 0 and inf / inf
    z = q * q
    p = (2.91976e-03 * z - 1.6364245e-02) * z + 4.3205976e-02
    p = ((p * z - 7.551729e-02) * z + 0.10665786) * z - 0.14211003
    p = (p * z + 0.19993767) * z - 0.33333153
    angle = q + q * (z * p)
    angle = angle if a >= b else 1.5707963267948966 - angle
    angle = pi - angle if x < 0.0 else angle
    return from_bits(bits(angle) | (bits(y) & -0x80000000))


def atan(x):
    """Return the arc tangent of `x`, rad in [-pi/2, pi/2]; error 2 ulp."""
    return atan2(x, 1.0)


def _asin_of_small(x, z):
    """Return asin(x) - x for |x| up to 1/2, where z = x^2; error of the polynomial 4.9e-9 x."""
    p = ((4.2158306e-02 * z + 2.4184778e-02) * z + 4.546915e-02) * z + 7.4953094e-02
    return x * (z * (p * z + 0.16666752))


def asin(x):
    """Return the arc sine of `x`, rad in [-pi/2, pi/2], nan beyond 1; error 2.1 ulp."""
    x = float32(x)
    size = abs(x)
    small = size <= 0.5
    z = size * size if small else 0.5 - 0.5 * size  # asin x = pi/2 - 2 asin sqrt((1 - x) / 2)
    root = sqrt(z)  # computed for all arguments: a branch would cost more
    s = size if small else root
    more = _asin_of_small(s, z)
    angle = s + more if small else (1.5707963705062866 - 2.0 * s) - (2.0 * more + 4.371139000186241e-8)  # pi/2 in two parts
    return from_bits(bits(angle) | (bits(x) & -0x80000000))


def acos(x):
    """Return the arc cosine of `x`, rad in [0, pi], nan beyond 1; error 1.3 ulp."""
    x = float32(x)
    size = abs(x)
    small = size <= 0.5
    z = size * size if small else 0.5 - 0.5 * size
    root = sqrt(z)
    s = x if small else root
    angle = s + _asin_of_small(s, z)
    wide = pi - 2.0 * angle if x < 0.0 else 2.0 * angle
    near = 1.5707963267948966 - angle
    return near if small else wide


def _exp_of_reduced(r, rounded):
    """Return e^r 2^k for |r| up to log(2) / 2 and `rounded` = k + _ROUND, k from -151 to 129."""
    p = ((1.3820136e-03 * r + 8.368686e-03) * r + 4.1668274e-02) * r + 0.16666521
    y = 1.0 + (r + r * r * (p * r + 0.49999994))
    # 2^k in two factors, each a normal float32.
    k = int32(bits(rounded) - _ROUND_BITS)
    half = int32(k >> 1)
    return y * from_bits((half + 127) << 23) * from_bits((k - half + 127) << 23)


def exp(x):
    """Return e to the `x`; inf above 88.72, subnormal below -87.3, 0 below -103.97; error 1.1 ulp."""
    x = clip(float32(x), float32(-104.0), float32(89.0))
    rounded = x * 1.4426950408889634 + _ROUND
    k = rounded - _ROUND
    return _exp_of_reduced((x - k * _LN2_1) - k * _LN2_2, rounded)


def _exponent_and_fraction(x):
    """Return k and f, float32, of |x| = 2^k (1 + f), 1 + f from sqrt(1/2) to sqrt(2); not for 0, inf and nan."""
    size = abs(x)
    subnormal = size < _SMALLEST_NORMAL
    shifted = int32(bits(size * 8388608.0 if subnormal else size) - _SQRT_HALF_BITS)
    k = float32(int32(shifted >> 23)) - (23.0 if subnormal else 0.0)
    return k, from_bits((shifted & 0x7FFFFF) + _SQRT_HALF_BITS) - 1.0


def log(x):
    """Return the natural logarithm of `x`: -inf at 0, nan below; error 1.2 ulp."""
    x = float32(x)
    k, f = _exponent_and_fraction(x)
    p = ((8.700401e-02 * f - 0.14266932) * f + 0.14914508) * f - 0.16577652
    p = ((p * f + 0.199631) * f - 0.25001335) * f + 0.3333391
    z = f * f
    y = k * _LN2_1 + (f + ((z * f * p + k * _LN2_2) - 0.5 * z))
    y = y if x < _INF else x
    special = float32(-_INF) if x == 0.0 else float32(_NAN)
    return y if x > 0.0 else special


def _head(x):
    """Return `x` cut to its first 12 bits: the product of two such numbers is exact, with or without fusing."""
    return from_bits(bits(x) & -0x1000)


def _log2(x):
    """Return the logarithm of |x| to base 2 as a sum of two float32, relative error 2^-31; not for 0, inf and nan."""
    k, f = _exponent_and_fraction(x)
    # log2(1 + f) = 2 / log(2) atanh s, s = f / (2 + f); s in two parts, the first of 11 bits, the second from the exact remainder.
    inverse = 1.0 / (2.0 + f)
    d = _head(2.0 + f)
    s = from_bits(bits(f * inverse) & -0x2000)
    s_rest = ((f - s * d) - s * (f - (d - 2.0))) * inverse
    # s^2 and the factor of s, in two parts as well.
    z = _head(s * s)
    z_rest = (s * s - z) + s_rest * (2.0 * s + s_rest)
    both = z + z_rest
    p = ((0.33648953 * both + 0.41192728) * both + 0.5770788) * both + _LOG2_CUBE_2
    slope = _head(_LOG2_1 + z * _LOG2_CUBE_1)
    slope_rest = ((_LOG2_1 - slope) + z * _LOG2_CUBE_1) + (z_rest * _LOG2_CUBE_1 + both * p + _LOG2_2)
    high = k + s * slope
    return high, ((k - high) + s * slope) + (s_rest * slope + (s + s_rest) * slope_rest)


def log10(x):
    """Return the logarithm of `x` to base 10: -inf at 0, nan below; error 0.6 ulp."""
    x = float32(x)
    high, low = _log2(x)
    head = _head(high)
    y = head * _LOG10_2_1 + (head * _LOG10_2_2 + ((high - head) + low) * 0.3010299956639812)
    y = y if x < _INF else x
    special = float32(-_INF) if x == 0.0 else float32(_NAN)
    return y if x > 0.0 else special


def power(x, y):
    """Return `x` to the `y`, as C99's pow: 1 if y is 0 or x is 1, nan if x < 0 and y is no integer; error 1.3 ulp.

    For x below 0, an odd y gives a negative result. The logarithm is a sum of two float32, as an error in it is multiplied by up to 150.
    """
    x, y = float32(x), float32(y)
    high, low = _log2(x)
    # The product with y. From |y| = 2^32 on, the only possible results are 0, 1 and inf.
    y_near = clip(y, float32(-4294967296.0), float32(4294967296.0))
    head, y_head = _head(high), _head(y_near)
    exponent = head * y_head
    rest = head * (y_near - y_head) + ((high - head) + low) * y_near
    rounded = clip(exponent + rest, float32(-151.0), float32(129.0)) + _ROUND
    r = clip((exponent - (rounded - _ROUND)) + rest, float32(-0.6), float32(0.6))
    result = _exp_of_reduced(r * _LN2, rounded)

    size = abs(x)
    limit = _INF if (size > 1.0) == (y > 0.0) else 0.0
    result = float32(limit) if (size == 0.0) | (size == _INF) else result
    whole = floor(y) == y
    half = 0.5 * y
    odd = whole & (floor(half) != half)
    result = from_bits(bits(result) | (bits(x) & -0x80000000)) if odd else result
    undefined = (x != x) | (y != y) | ((x < 0.0) & (size < _INF) & (not whole))
    result = float32(_NAN) if undefined else result
    return float32(1.0) if (y == 0.0) | (x == 1.0) else result


def _integer_and_exponent(x):
    """Return m and e, int32, of |x| = m 2^(e - 150), m from 2^23 below 2^24; not for 0, inf and nan."""
    size = abs(x)
    subnormal = size < _SMALLEST_NORMAL
    i = bits(size * 8388608.0 if subnormal else size)
    return int32((i & 0x7FFFFF) | 0x800000), int32((i >> 23) - (23 if subnormal else 0))


def fmod(x, y):
    """Return `x` less the multiple of `y` that leaves |result| < |y| and the sign of `x`, as C's fmod; exact, whatever the quotient.

    nan if y is 0 or x is infinite. Long division in 13 steps for all arguments: it vectorises, but costs far more than the other functions.
    """
    x, y = float32(x), float32(y)
    m, e = _integer_and_exponent(x)
    divisor, e_divisor = _integer_and_exponent(y)
    shift = maximum(int32(e - e_divisor), int32(0))
    inverse = 1.0 / float32(divisor)
    m = int32(m - divisor) if m >= divisor else m
    for _ in range(_FMOD_STEPS):
        step = minimum(shift, int32(_FMOD_BITS))
        shift = int32(shift - step)
        # The quotient may be off by one, which the remainder shows.
        quotient = int32(float32(m) * from_bits((step + 127) << 23) * inverse)
        m = int32((int64(m) << int64(step)) - int64(quotient) * int64(divisor))
        m = int32(m + divisor) if m < 0 else m
        m = int32(m - divisor) if m >= divisor else m
    # The factor 2^(e_divisor - 150) in two, each a normal float32.
    exponent = int32(e_divisor - 150)
    half = int32(exponent >> 1)
    result = float32(m) * from_bits((half + 127) << 23) * from_bits((exponent - half + 127) << 23)
    result = from_bits(bits(result) | (bits(x) & -0x80000000))
    result = x if abs(x) < abs(y) else result
    undefined = (y == 0.0) | (abs(x) == _INF) | (x != x) | (y != y)
    return float32(_NAN) if undefined else result


def tanh(x):
    """Return the hyperbolic tangent of `x`, within [-1, 1]; a rational function of x^2, fitted up to 9.02, from where on it rounds to 1.

    Error 6 ulp, 3.5e-7.
    """
    x = clip(float32(x), float32(-9.02), float32(9.02))
    z = x * x
    p = ((1.8162539046716577e-11 * z - 1.2743849669696665e-08) * z + 9.255137636270054e-06) * z + 2.9194121350939405e-03
    p = (p * z + 0.12917972044974851) * z + 0.9999999399484594
    q = ((2.2791382693059998e-04 * z + 2.3757640320155662e-02) * z + 0.46251254945606024) * z + 1.0
    return clip(x * p / q, float32(-1.0), float32(1.0))


def sigmoid(x):
    """Return 1 / (1 + e^-x); 0 below -88.72; error 3 ulp."""
    return 1.0 / (1.0 + exp(-float32(x)))


def softplus(x):
    """Return log(1 + e^x), without overflow; error 2.2 ulp."""
    x = float32(x)
    u = exp(-abs(x))  # log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)
    p = ((-3.2910798e-03 * u + 2.008847e-02) * u - 5.7460487e-02) * u + 0.10661371
    p = ((p * u - 0.15344977) * u + 0.19692121) * u - 0.2495802
    p = ((p * u + 0.33330464) * u - 0.4999993) * u + 1.0
    return maximum(x, float32(0.0)) + u * p
