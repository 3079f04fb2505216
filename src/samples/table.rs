//! The series of one response, compact, and indexed by their labels.

use crate::prometheus::{
    Body, Error, Flow, InvalidSample, Label, Reservation, ResultType, Series, read_query_response,
};
use crate::promql::union::QUERY_LABEL;
use crate::time::UnixMillis;
use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

/// The series of a response. Besides the text of the labels it takes 24 bytes
/// per series, 8 per label, and 16 per series for each of a few indexes.
#[derive(Debug, Default)]
pub struct Table {
    /// All label values, and the label names at the beginning of each name list.
    text: String,
    /// The distinct lists of label names, each as its first cell and its length.
    name_lists: Vec<(u32, u32)>,
    /// The begin and end of each value or name in the text.
    cells: Vec<(u32, u32)>,
    rows: Vec<Row>,
    /// The rows without a valid sample, and why; their value is NaN.
    invalid: Vec<(u32, InvalidSample)>,
    scalar: bool,
    indexes: Mutex<Indexes>,
}

/// The indexes of a table, the one used last at the end.
#[derive(Debug, Default)]
struct Indexes {
    cached: Vec<Arc<LabelIndex>>,
    /// The bytes that are reserved for the table, until it is dropped.
    reservation: Option<Reservation>,
}

/// The most indexes of a table. The queries choose the labels of an index: thousands of different
/// ones are possible.
const MAX_INDEXES: usize = 4;
/// The indexes whose bytes are reserved from the beginning.
const RESERVED_INDEXES: usize = 2;

/// The bytes of a list of names in the map that finds equal ones while a response is read.
const NAME_LIST_OVERHEAD: usize = 80;
/// The least bytes that are reserved at a time while a response is read.
const RESERVATION_STEP: usize = 64 << 10;

/// The lists of names that equal ones are found by while a response is read, by a hash of the names.
type NameLists = HashMap<u64, Vec<u32>>;

#[derive(Clone, Copy, Debug)]
struct Row {
    value: f64,
    time: UnixMillis,
    /// The index of its label names in `name_lists`.
    names: u32,
    /// Its first cell.
    cells: u32,
}

/// The rows by the values of some labels.
#[derive(Debug)]
pub struct LabelIndex {
    labels: Vec<String>,
    hasher: RandomState,
    /// By hash; rows with the same hash in the order of the response.
    rows: Vec<(u64, u32)>,
}

impl Table {
    /// Reads the body of a response.
    ///
    /// # Errors
    /// As [`read_query_response`] says.
    pub fn read(body: &[u8]) -> Result<Self, Error> {
        Self::read_within(body, |_| Ok(()))
    }

    /// Reads the body of a response and takes over its reservation. The reservation grows if the
    /// series take more than the body, and finally has the size of the table.
    ///
    /// # Errors
    /// As [`read_query_response`] says, and [`Error::Memory`].
    pub fn from_body(body: Body) -> Result<Self, Error> {
        body.read_owned(|body, mut reservation| {
            let table = Self::read_within(&body, growing(&mut reservation, body.len()))?;
            drop(body);
            reservation.resize(table.bytes())?;
            let indexes = Indexes { cached: Vec::new(), reservation: Some(reservation) };
            Ok(Self { indexes: Mutex::new(indexes), ..table })
        })
    }

    /// Reads the body of the response to a [`union`] of queries for these flows: a table for each, as it
    /// would be of the response to the query by itself, or [`Error::Memory`] if its flow has no room.
    ///
    /// # Errors
    /// As [`from_body`](Self::from_body), and if a series has none of the numbers.
    ///
    /// [`union`]: crate::promql::union
    pub fn split_body(body: Body, flows: &[&Flow]) -> Result<Vec<Result<Self, Error>>, Error> {
        body.read_owned(|body, mut reservation| {
            let within = growing(&mut reservation, body.len());
            let parts = Self::split(&body, flows.len(), within)?;
            drop(body);
            reservation.resize(0)?;
            let reserved = |(table, flow): (Self, &&Flow)| {
                let mut reservation = reservation.another(flow);
                reservation.grow(table.bytes())?;
                let indexes = Indexes { cached: Vec::new(), reservation: Some(reservation) };
                Ok(Self { indexes: Mutex::new(indexes), ..table })
            };
            Ok(parts.into_iter().zip(flows).map(reserved).collect())
        })
    }

    /// The tables of so many queries from the response to all of them, as long as `within` has room for the bytes of all.
    fn split(
        body: &[u8],
        queries: usize,
        mut within: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<Vec<Self>, Error> {
        check_length(body)?;
        let mut parts: Vec<(Self, NameLists)> = (0..queries).map(|_| Default::default()).collect();
        let (mut stray, mut taken, mut room) = (false, 0, Ok(()));
        read_query_response(body, |series| {
            let of = |(name, _): &&Label<'_>| *name == QUERY_LABEL;
            let number = series.labels.iter().find(of).and_then(|(_, text)| text.parse().ok());
            let part = number.and_then(|number: usize| parts.get_mut(number));
            let Some((table, known)) = part else { return stray = true };
            if room.is_err() {
                return;
            }
            let labels: Vec<_> = series.labels.iter().filter(|label| !of(label)).cloned().collect();
            let before = table.bytes_while_read();
            table.push(Series { labels: &labels, ..series }, known);
            taken += table.bytes_while_read() - before;
            room = within(taken);
        })?;
        room?;
        match stray {
            true => Err(Error::InvalidResponse("a series is of none of the queries".to_owned())),
            false => Ok(parts.into_iter().map(|(table, _)| table.shrunk()).collect()),
        }
    }

    /// Reads the body of a response, as long as `within` has room for the bytes of the table.
    fn read_within(
        body: &[u8],
        mut within: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        check_length(body)?;
        let (mut table, mut known, mut room) = (Self::default(), HashMap::new(), Ok(()));
        let result_type = read_query_response(body, |series| {
            if room.is_ok() {
                table.push(series, &mut known);
                room = within(table.bytes_while_read());
            }
        })?;
        room?;
        table.scalar = result_type == ResultType::Scalar;
        Ok(table.shrunk())
    }

    fn shrunk(mut self) -> Self {
        self.text.shrink_to_fit();
        self.name_lists.shrink_to_fit();
        self.cells.shrink_to_fit();
        self.rows.shrink_to_fit();
        self.invalid.shrink_to_fit();
        self
    }

    /// The memory in bytes while it is read, including the map of name lists.
    /// Spare capacity is not counted, as the kernel backs only pages that were written.
    fn bytes_while_read(&self) -> usize {
        let cells = size_of_val(&*self.cells) + size_of_val(&*self.name_lists);
        let rows = size_of_val(&*self.rows) + size_of_val(&*self.invalid);
        self.text.len() + cells + rows + self.name_lists.len() * NAME_LIST_OVERHEAD
    }

    /// The memory in bytes, with the [`RESERVED_INDEXES`].
    pub(super) fn bytes(&self) -> usize {
        let indexes = RESERVED_INDEXES * self.index_bytes();
        let cells = size_of_val(&*self.cells) + size_of_val(&*self.name_lists);
        let rows = size_of_val(&*self.rows) + size_of_val(&*self.invalid);
        size_of::<Self>() + self.text.len() + cells + rows + indexes
    }

    fn index_bytes(&self) -> usize {
        size_of::<(u64, u32)>() * self.rows.len()
    }

    fn push(&mut self, series: Series<'_>, known: &mut NameLists) {
        let Series { labels, value, time } = series;
        let names = self.name_list(labels, known);
        let value = value.unwrap_or_else(|reason| {
            self.invalid.push((self.rows.len() as u32, reason));
            f64::NAN
        });
        let cells = self.cells.len() as u32;
        labels.iter().for_each(|(_, value)| self.write(value));
        self.rows.push(Row { value, time, names, cells });
    }

    fn write(&mut self, text: &str) {
        let start = self.text.len() as u32;
        self.text.push_str(text);
        self.cells.push((start, self.text.len() as u32));
    }

    /// The index of the labels' names in `name_lists`; nearly always that of the row
    /// before. `known` has the indexes by a hash of the names.
    fn name_list(&mut self, labels: &[Label<'_>], known: &mut NameLists) -> u32 {
        let same = |table: &Self, index: u32| {
            let names = table.names(index);
            names.len() == labels.len() && names.zip(labels).all(|(a, (b, _))| a == b)
        };
        let last = self.rows.last().map(|row| row.names);
        if let Some(last) = last.filter(|last| same(self, *last)) {
            return last;
        }
        let mut hash = DefaultHasher::new();
        labels.iter().for_each(|(name, _)| name.hash(&mut hash));
        let candidates = known.entry(hash.finish()).or_default();
        if let Some(index) = candidates.iter().find(|index| same(self, **index)) {
            return *index;
        }
        let index = self.name_lists.len() as u32;
        self.name_lists.push((self.cells.len() as u32, labels.len() as u32));
        labels.iter().for_each(|(name, _)| self.write(name));
        candidates.push(index);
        index
    }

    /// The names of a list.
    fn names(&self, index: u32) -> impl ExactSizeIterator<Item = &str> {
        let (first, count) = self.name_lists[index as usize];
        (first..first + count).map(|cell| self.cell(cell as usize))
    }

    /// The number of series.
    pub fn series(&self) -> usize {
        self.rows.len()
    }

    /// The value of a row; NaN if it has no valid sample.
    pub(super) fn value(&self, row: u32) -> f64 {
        self.rows[row as usize].value
    }

    /// The time of a row's sample.
    pub(super) fn time(&self, row: u32) -> UnixMillis {
        self.rows[row as usize].time
    }

    /// Whether the result is a scalar.
    pub(super) fn is_scalar(&self) -> bool {
        self.scalar
    }

    /// The rows without a valid sample, in ascending order, and why.
    pub(super) fn invalid(&self) -> &[(u32, InvalidSample)] {
        &self.invalid
    }

    /// The value of a row's label; empty if it has none, as in Prometheus.
    pub(super) fn label(&self, row: u32, name: &str) -> &str {
        let row = &self.rows[row as usize];
        let index = self.names(row.names).position(|other| other == name);
        index.map_or("", |index| self.cell(row.cells as usize + index))
    }

    /// The names and values of a row's labels.
    pub(super) fn labels(&self, row: u32) -> impl Iterator<Item = (&str, &str)> {
        let row = &self.rows[row as usize];
        let names = self.names(row.names).enumerate();
        names.map(move |(index, name)| (name, self.cell(row.cells as usize + index)))
    }

    fn cell(&self, index: usize) -> &str {
        let (start, end) = self.cells[index];
        &self.text[start as usize..end as usize]
    }

    /// The index by these labels, built unless it is cached. If there is no room for one more, it
    /// replaces the least recently used one.
    pub(super) fn index(&self, labels: &[&str]) -> Arc<LabelIndex> {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let Indexes { cached, reservation } = &mut *indexes;
        let index = match cached.iter().position(|index| index.labels == labels) {
            Some(position) => cached.remove(position),
            None => {
                let mut grown = || match reservation {
                    Some(reservation) => reservation.grow(self.index_bytes()).is_ok(),
                    None => true,
                };
                let room = cached.len() < RESERVED_INDEXES || cached.len() < MAX_INDEXES && grown();
                if !room {
                    cached.remove(0);
                }
                let labels = labels.iter().map(|label| (*label).to_owned()).collect();
                Arc::new(LabelIndex::new(self, labels))
            }
        };
        cached.push(index.clone());
        index
    }

    /// Whether no more indexes are cached than may be.
    #[cfg(test)]
    pub(super) fn has_few_indexes(&self) -> bool {
        self.indexes.lock().unwrap().cached.len() <= MAX_INDEXES
    }
}

/// Has room for the bytes of a table beside the body as long as the reservation can grow.
fn growing(
    reservation: &mut Reservation,
    body: usize,
) -> impl FnMut(usize) -> Result<(), Error> + use<'_> {
    move |bytes| {
        let beyond = (bytes + body).saturating_sub(reservation.bytes());
        // In steps, as the budget is shared by all responses.
        if beyond == 0 { Ok(()) } else { reservation.grow(beyond.max(RESERVATION_STEP)) }
    }
}

fn check_length(body: &[u8]) -> Result<(), Error> {
    match u32::try_from(body.len()) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::InvalidResponse("it is larger than 4 GiB".to_owned())),
    }
}

impl LabelIndex {
    fn new(table: &Table, labels: Vec<String>) -> Self {
        let hasher = RandomState::new();
        let hash = |row: u32| {
            let mut of_row = hasher.build_hasher();
            labels.iter().for_each(|label| table.label(row, label).hash(&mut of_row));
            of_row.finish()
        };
        let mut rows: Vec<(u64, u32)> =
            (0..table.rows.len() as u32).map(|row| (hash(row), row)).collect();
        rows.sort_unstable();
        Self { labels, hasher, rows }
    }

    /// The hash of the values of the first labels, to be continued with those of the others.
    pub(super) fn hash_prefix(&self, values: &[&str]) -> DefaultHasher {
        let mut hash = self.hasher.build_hasher();
        values.iter().for_each(|value| value.hash(&mut hash));
        hash
    }

    /// The rows with this hash whose labels have these values, in the order of the response.
    pub(super) fn find<'a, Values: Iterator<Item = &'a str>>(
        &'a self,
        table: &'a Table,
        hash: u64,
        values: impl Fn() -> Values,
    ) -> impl Iterator<Item = u32> {
        let from = self.rows.partition_point(|(other, _)| *other < hash);
        let same = self.rows[from..].iter().take_while(move |(other, _)| *other == hash);
        let equal = move |row: &u32| {
            let mut both = self.labels.iter().zip(values());
            both.all(|(label, value)| table.label(*row, label) == value)
        };
        same.map(|(_, row)| *row).filter(equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_takes_no_more_memory_than_there_is_room_for() {
        // Each series has different names, which are longer than the values.
        let series = |n: usize| {
            let labels: Vec<_> = (0..20).map(|label| format!(r#""{n}{label}":"""#)).collect();
            format!(r#"{{"metric":{{{}}},"value":[1,"2"]}}"#, labels.join(","))
        };
        let all: Vec<String> = (0..2_000).map(series).collect();
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{}]}}}}"#, all.join(","));
        let table = Table::read(body.as_bytes()).unwrap();
        assert_eq!(table.series(), 2_000);
        assert!(table.bytes() < 2 * body.len(), "{} of {}", table.bytes(), body.len());
        assert_eq!(table.label(1_999, "199919"), "");
        let room = table.bytes() / 2;
        let mut taken = 0;
        let within = |bytes: usize| {
            taken = bytes;
            if bytes <= room { Ok(()) } else { Err(Error::Memory { limit: room }) }
        };
        let error = Table::read_within(body.as_bytes(), within).unwrap_err();
        assert_eq!(error, Error::Memory { limit: room });
        assert!(taken < 2 * room, "{taken} bytes where {room} are free");
    }

    /// Also of a server whose rows have ever new labels.
    #[tokio::test]
    async fn the_response_to_several_queries_takes_no_more_memory_than_there_is_room_for() {
        let series = |n: usize| {
            format!(r#"{{"metric":{{"{n}":"","{QUERY_LABEL}":"{}"}},"value":[1,"2"]}}"#, n % 2)
        };
        let all: Vec<String> = (0..10_000).map(series).collect();
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{}]}}}}"#, all.join(","));
        let room = body.len() / 2;
        let mut most = 0;
        let within = |bytes: usize| {
            most = bytes;
            if bytes <= room { Ok(()) } else { Err(Error::Memory { limit: room }) }
        };
        let error = Table::split(body.as_bytes(), 2, within).unwrap_err();
        assert_eq!(error, Error::Memory { limit: room });
        assert!(most < room + 1_000, "{most} bytes where {room} are free");
    }
}
