module plimsoll.dev/bed/pods

go 1.26.0
