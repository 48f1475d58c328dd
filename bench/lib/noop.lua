-- The handler of the bench: does nothing, so that only the queue costs time.
return { noop = function() end }
