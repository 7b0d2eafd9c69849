use super::*;

#[test]
fn a_backup_is_noticed_as_damaged() {
    assert_ne!(sum_of("{}"), sum_of("{ }"));
    assert_eq!(read_backup("nothing").unwrap_err().code, Code::BadBackup);
    let newer = ClusterBackup {
        format: BACKUP_FORMAT + 1,
        cluster: "c".into(),
        node: "a".into(),
        at_ms: 0,
        revision: 1,
        sum: sum_of("{}"),
        state: "{}".into(),
    };
    let text = serde_json::to_string(&newer).expect("it is text");
    assert!(read_backup(&text).unwrap_err().message.contains("format 2"));
}
