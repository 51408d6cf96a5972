"""Facts on the other members of a gang: their statuses, who reaches whom, and the rendezvous."""
