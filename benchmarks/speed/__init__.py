"""How fast is it: the machine's limit, regressions, other trees and other frameworks beside this one."""
