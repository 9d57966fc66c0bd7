"""The health of chains: by all draws in bounded memory (`streaming`), and by the newest ones, exactly (`window`)."""
