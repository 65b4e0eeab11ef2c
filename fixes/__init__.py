"""The cures, one module each, named as the check whose findings they mend."""
