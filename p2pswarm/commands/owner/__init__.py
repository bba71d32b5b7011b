"""Commands of the owner of a closed run: invite, list, revoke, renew."""
