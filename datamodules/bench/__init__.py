"""How fast the data plane is, beside what one would use without it.

A ratio means something only if both sides ran under the same conditions.  So all cases run in one
process, in turns, several times over; each ratio is formed within one turn; and the other side is
measured twice, because a ratio of the same thing with itself shows what the machine adds.
"""
