"""Facts on the other members of a gang: their statuses, which of them reach one another, and the rendezvous."""
