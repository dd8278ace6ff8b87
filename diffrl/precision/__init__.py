"""The low-precision copy of the policy that explores; what it computes in is observed and reported, never assumed."""
