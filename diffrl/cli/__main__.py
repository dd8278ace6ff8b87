"""`python -m diffrl.cli`, also where accelerate launches it: `accelerate launch -m diffrl.cli train CONFIG`."""

from diffrl.cli import main

if __name__ == "__main__":
    main()
